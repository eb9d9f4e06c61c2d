from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, sources
from streampack.cli import main
from streampack.errors import ConfigError
from streampack.packing import BestFitDecreasing
from tests.support.chats import CHATML, messages, write_lines
from tests.support.corpora import byte_tokenizer
from tests.support.program import output_of


def run(*arguments: object) -> str:
    return output_of("explain", *arguments)


def ids(mu: float, sigma: float, n: int) -> list[Any]:
    lengths = np.exp(np.random.default_rng(1).normal(mu, sigma, n)).astype(int) + 1
    return [np.full(length, 7, dtype=np.uint16) for length in lengths]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def sizes(value: int) -> list[object]:
    return ["--seq-len", value]


def test_the_screen_says_what_the_run_then_does(folder: Path) -> None:
    pq.write_table(pa.table({"ids": pa.array(ids(5.0, 1.0, 900))}), folder / "a.parquet")
    path = str(folder / "a.parquet")
    said = json.loads(run(path, "--tokens", "ids", *sizes(512), "--json"))
    dataset = PackedDataset(sources.open(path, tokens="ids"), seq_len=512)
    loader = PackedLoader(dataset)
    batches = list(loader)
    composition = loader.metrics().composition
    assert said["documents"] == 900
    assert abs(said["steps"] - len(batches)) <= said["steps_error"]
    assert said["utilisation"] == pytest.approx(composition.utilisation, abs=0.02)
    assert said["truncation_ratio"] == pytest.approx(composition.truncation_ratio, abs=0.01)
    loss = sum(batch.num_loss_tokens for batch in batches) / sum(b.num_tokens for b in batches)
    assert said["loss_share"] == pytest.approx(loss, abs=0.01)
    screen = run(path, "--tokens", "ids", *sizes(512))
    assert f"about {said['steps']:,} steps (within {said['steps_error']:,})" in screen
    assert len(screen.splitlines()) < 40
    for choice in said["choices"]:
        assert f"{choice['packer']}(" in screen
        assert f"{100 * choice['utilisation']:.2f}" in screen


def test_what_is_lost_and_what_carries_loss_is_counted() -> None:
    records = [{"ids": [1] * n, "m": [0] * (n // 2) + [1] * (n - n // 2)} for n in (8, 20) * 50]
    packer = BestFitDecreasing(seq_len=10, overflow="truncate")
    dataset = PackedDataset(sources.Items(records, tokens="ids", loss_mask="m"), packer=packer)
    found = dataset.explain()
    assert found.composition.dropped_ratio == 500 / 1400
    assert found.loss_share == pytest.approx(4 / 18, abs=0.05)
    assert "35.71% lost" in str(found)
    others = [other for other, _ in found.choices if isinstance(other, BestFitDecreasing)]
    assert {other.overflow for other in others} == {"truncate"}
    assert packer not in others


def test_a_mixture_says_what_it_draws() -> None:
    mixed = sources.Mixture(
        {"few": [[1] * 10] * 20, "many": [[2] * 10] * 200}, weights={"few": 1, "many": 1}
    )
    found = PackedDataset(mixed, seq_len=20).explain()
    assert {draw.name: round(draw.epoch_tokens) for draw in found.draws} == {
        "few": 200,
        "many": 2000,
    }
    assert "few: " in str(found)


def test_texts_are_counted_in_tokens(folder: Path) -> None:
    texts = ["x" * n for n in range(1, 200)]
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (folder / "txt").mkdir()
    for number, text in enumerate(texts[:20]):
        (folder / "txt" / f"{number:02}.txt").write_text(text)
    tokenizer = ("--tokenizer", folder / "tokenizer.json")
    assert "199 in the sample: 101 tokens" in run(folder / "a.jsonl", *tokenizer, *sizes(512))
    assert "20 in the sample: 12 tokens" in run(folder / "txt", *tokenizer, *sizes(512))


def test_conversations_and_mixtures_are_named_in_python_as_the_error_says(folder: Path) -> None:
    byte_tokenizer().save("tokenizer.json")
    Path("chatml.jinja").write_text(CHATML)
    write_lines(
        folder / "chats.jsonl", [{"messages": messages("hi", "ab" * (i + 1))} for i in range(90)]
    )
    given = (*sizes(64), "--tokenizer", "tokenizer.json")
    with pytest.raises(ConfigError):
        run(folder / "chats.jsonl", *given)
    Path("corpus.py").write_text(
        "from streampack import PackedDataset, packing, sources\n"
        f"chats = sources.Chat({str(folder / 'chats.jsonl')!r}, template='chatml.jinja')\n"
        "def mixed():\n"
        "    return sources.Mixture({'a': chats, 'b': ['word'] * 90}, weights={'a': 1, 'b': 1})\n"
        "dataset = PackedDataset(\n"
        "    mixed(), packer=packing.Pad(seq_len=64), tokenizer='tokenizer.json'\n"
        ")\n"
    )
    assert "90 in the sample" in run("corpus.py:chats", *given)
    assert "180 in the sample" in run("corpus.py:dataset")
    for wrong in ("corpus.py:nothing", "other.py:chats"):
        with pytest.raises(ConfigError, match=wrong.split(":")[0]):
            run(wrong, *given)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["in/a.jsonl"], "--tokens NAME, if a field"),
        (["in/a.jsonl", "--tokens", "text", "--seq-len", "1"], "seq_len is 1"),
        (["in/empty.parquet", "--tokens", "ids"], "no token"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_1(
    folder: Path,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    pq.write_table(
        pa.table({"ids": pa.array([[]], pa.list_(pa.int32()))}), folder / "empty.parquet"
    )
    monkeypatch.setattr(sys, "argv", ["streampack", "explain", *arguments])
    with pytest.raises(SystemExit) as error:
        main()
    said = str(error.value.code)  # Python prints it on standard error and exits with 1
    assert said.startswith("streampack: ")
    assert words in said
    assert len(said.splitlines()) == 1
