"""`python -m benchmarks loader` measures a user's own files and names what limits them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import normalizers

from benchmarks.__main__ import main
from benchmarks.loader.verdict import Pace
from tests.support.corpora import byte_tokenizer, write_mds
from tests.support.servers import http_server

ROOT = Path(__file__).parents[2]
QUICK = ["--seq-len", "64", "--batch-tokens", "256", "--seconds", "0.1"]


@pytest.fixture
def documents() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 250, n).astype(np.uint16) for n in rng.integers(1, 200, 300)]


def mds(folder: Path, documents: list[np.ndarray]) -> list[str]:
    return ["--source", write_mds(folder, documents)]


def parquet(folder: Path, documents: list[np.ndarray]) -> list[str]:
    table = pa.table({"ids": [document.tolist() for document in documents]})
    pq.write_table(table, folder / "ids.parquet", row_group_size=16)
    return ["--source", str(folder / "ids.parquet"), "--tokens", "ids"]


def jsonl(folder: Path, documents: list[np.ndarray]) -> list[str]:
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    with (folder / "texts.jsonl").open("w") as lines:
        lines.writelines(json.dumps({"text": "ab cd " * len(d)}) + "\n" for d in documents)
    tokenizer = ["--tokenizer", str(folder / "tokenizer.json"), "--eos-id", "256"]
    return ["--source", str(folder / "texts.jsonl"), *tokenizer]


def found_by(arguments: list[str], out: Path) -> dict[str, Any]:
    main(["loader", *QUICK, *arguments, "--out", str(out)])
    (rank,) = json.loads(out.read_text())["ranks"]
    return dict(rank)


@pytest.mark.parametrize("write", [mds, parquet, jsonl])
@pytest.mark.parametrize("workers", [0, 1])
def test_every_stage_of_real_files_has_figures(
    write: Callable[..., list[str]], workers: int, documents: list[np.ndarray], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = [*write(tmp_path, documents), "--workers", str(workers), "--step-ms", "2"]
    rank = found_by(given, tmp_path / "out.json")
    printed = capsys.readouterr().out
    for line in rank["lines"]:
        assert line["tokens"] > 0
        assert line["documents"] > 0
        assert line["content"] > 0
        assert line["stage"] in printed
    stages = [line["stage"] for line in rank["lines"]]
    prepare = "+ tokenize" if write is jsonl else "+ check"
    assert stages[:5] == ["read, the first time", "read again", prepare, "+ pack", "+ fields"]
    assert stages[5:] == ["+ 1 workers"] * workers
    assert 0 < rank["waits"][0] <= rank["waits"][1]
    assert rank["sentences"][-1] in printed
    content = {mds: 2, parquet: 4, jsonl: 6 / 6}[write]  # bytes per token as read
    assert rank["lines"][0]["content"] == pytest.approx(
        content * rank["lines"][0]["tokens"], rel=0.02
    )


def test_a_corpus_of_text_is_limited_by_its_tokenizer(
    documents: list[np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*jsonl(tmp_path, documents), "--workers", "0"]
    slow = byte_tokenizer()
    slow.normalizer = normalizers.Sequence([normalizers.NFKC()] * 30)
    slow.save(str(tmp_path / "tokenizer.json"))
    rank = found_by(given, tmp_path / "out.json")
    assert rank["limit"] == "tokenizer"
    assert "streampack convert SOURCE DEST --tokenizer" in capsys.readouterr().out


def test_storage_that_makes_every_shard_wait_is_what_limits(
    documents: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_mds(tmp_path, documents)
    with http_server(tmp_path) as server:
        server.gate = lambda name: time.sleep(0.05)
        source = ["--source", f"{server.url}/mds", "--tokens", "t", "--workers", "0"]
        rank = found_by([*source, "--seconds", "1"], tmp_path / "out.json")
    assert rank["limit"] == "storage"
    # About 30 shards of 2,000 bytes, several downloaded at once, none for the second time.
    first, again = rank["lines"][:2]
    assert first["tokens"] < again["tokens"]


@pytest.mark.gpu
def test_the_copy_to_the_device_is_a_stage(documents: list[np.ndarray], tmp_path: Path) -> None:
    given = [*mds(tmp_path, documents), "--workers", "1", "--device", "cuda"]
    rank = found_by(given, tmp_path / "out.json")
    assert [line["stage"] for line in rank["lines"]][5:] == ["+ 1 workers", "+ to cuda:0"]
    assert rank["pace"]["device"] == "cuda:0"
    assert rank["costs"]["transfer"] > 0


@pytest.mark.slow
def test_two_ranks_measure_at_once_and_the_first_reports_the_sum(
    documents: list[np.ndarray], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    given = [*jsonl(tmp_path, documents), *QUICK, "--step-ms", "2", "--out", str(out)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", "-m", "benchmarks", "loader", *given],
        cwd=ROOT, timeout=120, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    ranks = json.loads(out.read_text())["ranks"]
    assert len(ranks) == 2
    rates = [rank["lines"][-1]["tokens"] for rank in ranks]
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("+ 1 workers"))
    assert float(row.split()[3]) == pytest.approx(sum(rates) / 1e6, rel=1e-3)
    assert row.endswith(f"(rank {rates.index(min(rates))})")
    assert "What limits: " in done.stdout


def pace(**more: Any) -> Pace:
    given: dict[str, Any] = {"workers": 1, "cores": 8, "batch_tokens": 1e4, "rate": 1e7, **more}
    return Pace(**given)
