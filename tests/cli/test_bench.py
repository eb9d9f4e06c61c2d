"""`streampack bench` loads a corpus and reports the rate."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack.errors import ConfigError
from tests.support.corpora import byte_tokenizer
from tests.support.program import output_of
from tests.support.servers import http_server


@pytest.fixture
def corpus(tmp_path: Path) -> list[str]:
    lines = [json.dumps({"text": f"document {i} " * (i % 40 + 1)}) for i in range(200)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return [
        "bench", str(tmp_path / "texts.jsonl"), "--tokenizer", str(tmp_path / "tokenizer.json"),
        "--seq-len", "128", "--batch-size", "2", "--seconds", "0.05",
    ]  # fmt: skip


def test_rates_belong_together(corpus: list[str]) -> None:
    asked = ("--workers", "0,1", "--workers", 7)
    found = json.loads(output_of(*corpus, *asked, "--json"))
    assert found["lanes"] == 1  # so one worker is the most
    assert [own["workers"] for own in found["runs"]] == [0, 1]
    for own in found["runs"]:
        assert own["steps"] >= 1
        assert 0 < own["tokens"] <= own["steps"] * 256
        assert own["seconds"] >= 0.05
        assert own["tokens_per_s"] == pytest.approx(own["tokens"] / own["seconds"])
        assert own["batches_per_s"] == pytest.approx(own["steps"] / own["seconds"])
        assert 0 <= own["waiting"] <= 1
        assert own["first_batch_s"] > 0
        stages = {"storage", "decoding", "tokenizing", "packing", "sending"}
        assert {f"occupancy/{stage}" for stage in stages} <= set(own)


@pytest.mark.parametrize(("rows", "is_slow"), [(10, True), (4096, False)])
def test_a_layout_that_makes_reading_slow_is_named(
    rows: int, is_slow: bool, tmp_path: Path
) -> None:
    table = pa.table({"tokens": [[i % 100] * 20 for i in range(4096)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=rows)
    given = ("--workers", 0, "--seconds", 0.05, "--seq-len", 128)
    found = json.loads(output_of("bench", str(tmp_path / "a.parquet"), *given, "--json"))
    assert bool(found["layout"]) == is_slow
    if is_slow:  # it is named if reading or decoding is the limit
        assert "10 rows" in found["layout"]


def test_with_a_step_the_loop_waits_less_than_without(corpus: list[str]) -> None:
    found = json.loads(output_of(*corpus, "--workers", 0, "--step-ms", 20, "--json"))
    assert found["step_s"] == 0.02
    assert "loop waits" in output_of(*corpus, "--workers", 0, "--step-ms", 20)
    assert found["runs"][0]["steps"] <= 4


def test_a_dataset_is_loaded_in_its_own_rows_and_batches(corpus: list[str], tmp_path: Path) -> None:
    made = tmp_path / "made.py"
    made.write_text(
        "from streampack import PackedDataset\n"
        "from streampack.packing import Pad\n"
        f"dataset = PackedDataset({corpus[1]!r}, tokenizer={corpus[3]!r},\n"
        "    packer=Pad(seq_len=64), batch_size=1)\n"
    )

    def tokens_of_a_batch(*options: object) -> float:
        given = ("--seconds", 0.01, "--workers", 0, "--json", *options)
        run = json.loads(output_of("bench", f"{made}:dataset", *given))["runs"][0]
        return float(run["tokens"] / run["steps"])

    assert 0 < tokens_of_a_batch() <= 64
    assert 64 < tokens_of_a_batch("--batch-size", 4) <= 256
    assert 64 < tokens_of_a_batch("--seq-len", 512) <= 512


def test_a_step_of_the_user_gets_the_batches(corpus: list[str], tmp_path: Path) -> None:
    made = tmp_path / "made.py"
    made.write_text(
        "import time\n\n\ndef step(batch):\n"
        "    assert batch.input_ids.shape == (2, 128)\n    time.sleep(0.02)\n"
    )
    found = json.loads(output_of(*corpus, "--workers", 0, "--step", f"{made}:step", "--json"))
    assert found["runs"][0]["steps"] <= 4
    assert "loop waits" in output_of(*corpus, "--workers", 0, "--step", f"{made}:step")


def test_headspace_is_the_gain_of_a_perfect_loader(corpus: list[str]) -> None:
    asked = ("--headspace", "--steps", 20, "--step-ms", 2, "--workers", 0, "--workers", 1)
    runs = json.loads(output_of(*corpus, *asked, "--json"))["runs"]
    assert [run["workers"] for run in runs] == [0, 1]
    for run in runs:
        assert run["ready_s"] >= 0.002
        assert run["gain"] == pytest.approx(run["loader_s"] / run["ready_s"])
    assert "possible gain" in output_of(*corpus, *asked)


def test_headspace_without_a_step_is_refused(corpus: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        output_of(*corpus, "--headspace")
    assert raised.value.setting == "step_ms"


@pytest.mark.slow
def test_a_store_that_sends_slowly_is_named_with_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    np.save(tmp_path / "served" / "a.npy", np.arange(16 << 20, dtype=np.uint16) % 1000)
    line = threading.Lock()  # that carries one answer at a time

    def wait(_: str) -> None:
        with line:
            time.sleep(0.5)

    with http_server(tmp_path / "served") as http:
        http.gate = wait
        made = tmp_path / "made.py"
        made.write_text(
            "from streampack import PackedDataset, WindowConfig, sources\n"
            f"storage = sources.Storage(cache_dir={str(tmp_path / 'cache')!r})\n"
            f"source = sources.Tokens({http.url + '/a.npy'!r}, eos_id=999, storage=storage)\n"
            "dataset = PackedDataset(source, seq_len=1024, lanes=1, window=WindowConfig(rows=16))\n"
        )
        asked = ("--seconds", 2, "--workers", 0, "--json")
        (run,) = json.loads(output_of("bench", f"{made}:dataset", *asked))["runs"]
        http.gate = None
    assert run["limit"] == "storage"
    assert 0 < run["fetched_bytes"] < 33 << 20
