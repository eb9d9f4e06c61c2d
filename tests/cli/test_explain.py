from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedBatch, PackedDataset, PackedLoader, TokenRules, Topology, sources
from streampack.cli import main
from streampack.errors import ConfigError
from streampack.metrics import Metrics
from streampack.packing import BestFitDecreasing, Buckets, Packer, Seamless
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


def test_the_screen_forecasts_the_run(folder: Path) -> None:
    pq.write_table(pa.table({"ids": pa.array(ids(5.0, 1.0, 900))}), folder / "a.parquet")
    path = str(folder / "a.parquet")
    report = json.loads(run(path, "--tokens", "ids", *sizes(512), "--json"))
    dataset = PackedDataset(sources.open(path, tokens="ids"), seq_len=512)
    loader = PackedLoader(dataset)
    batches = list(loader)
    composition = loader.metrics().composition
    assert report["documents"] == 900
    assert abs(report["steps"] - len(batches)) <= report["steps_error"]
    assert report["utilisation"] == pytest.approx(composition.utilisation, abs=0.02)
    assert report["truncation_ratio"] == pytest.approx(composition.truncation_ratio, abs=0.01)
    loss = sum(batch.num_loss_tokens for batch in batches) / sum(b.num_tokens for b in batches)
    assert report["loss_share"] == pytest.approx(loss, abs=0.01)
    screen = run(path, "--tokens", "ids", *sizes(512))
    assert f"in {report['steps']:,} steps (within {report['steps_error']:,})" in screen
    assert len(screen.splitlines()) < 40
    for choice in report["choices"]:
        assert f"{choice['packer']}(" in screen
        assert f"{100 * choice['utilisation']:.2f}" in screen


def epoch_of(source: Any, packer: Packer, **options: Any) -> tuple[Metrics, list[PackedBatch]]:
    """Return the metrics and the batches of a whole run of one lane, unshuffled."""
    loader = PackedLoader(in_order(source, packer, **options))
    batches = list(loader)
    return loader.metrics(), batches


def in_order(source: Any, packer: Packer, **options: Any) -> PackedDataset:
    return PackedDataset(
        source, packer=packer, lanes=1, shuffle=False, topology=Topology(), **options
    )


@pytest.mark.parametrize("overflow", ["split", "truncate", "drop"])
def test_an_epoch_that_the_sample_holds_is_counted_to_the_last_token(overflow: Any) -> None:
    records = [{"ids": one, "m": one % 2} for one in ids(3.0, 1.0, 700)]
    for record in records[::9]:
        record["m"] = np.zeros_like(record["ids"])
    empty = [{"ids": [], "m": []}] * 5
    source = sources.Items([*records, *empty], tokens="ids", loss_mask="m")
    packer = BestFitDecreasing(seq_len=50, overflow=overflow)
    found = in_order(source, packer).explain()
    metrics, batches = epoch_of(source, packer)
    told, then = found.composition, metrics.composition
    for name in ("placed", "dropped", "documents_cut", "documents_cropped", "documents_lost"):
        assert getattr(told, name) == getattr(then, name), name
    lost = {"split": "documents_cut", "truncate": "dropped", "drop": "documents_lost"}
    assert getattr(told, lost[overflow])
    assert -(-told.rows // 8) * 8 == then.rows == 8 * len(batches)  # the last one is filled up
    assert found.sample.empty == metrics.empty_documents == 5
    assert found.forecast is not None
    assert found.forecast.rows == told.rows
    assert found.forecast.draws[0].epoch_tokens == then.placed + then.dropped
    assert abs(found.forecast.steps.steps - len(batches)) <= found.forecast.steps.error
    loss = sum(batch.num_loss_tokens for batch in batches)
    assert found.loss_share == pytest.approx(loss / then.placed, abs=0.05)
    assert f"{then.dropped_ratio:.2%} lost" in str(found)


@pytest.mark.parametrize("overflow", ["split", "drop"])
def test_each_choice_has_the_effect_in_the_table(overflow: Any) -> None:
    documents = ids(3.0, 1.0, 400)
    found = in_order(documents, BestFitDecreasing(seq_len=64, overflow=overflow)).explain()
    ways = {p.overflow for p, _ in found.choices if p.seq_lens == (64,)}
    assert ways >= {"split", "truncate", "drop"} - {overflow}
    for packer, told in found.choices:
        size = 8 * 64 // packer.seq_lens[-1]
        metrics, _ = epoch_of(documents, packer, batch_size=size, token_rules=TokenRules(eos_id=9))
        then = metrics.composition
        for name in ("placed", "dropped", "repeated", "documents_cut"):
            off = abs(getattr(told, name) - getattr(then, name))
            # These two plan the last rows together with the rows that fill up the last batch.
            assert off <= (30 if isinstance(packer, Seamless | Buckets) else 0), (packer, name)
        last = then.slots - told.slots  # the last batch of each length is filled up
        assert 0 <= last < 8 * 64 * len(packer.seq_lens), packer


def test_broken_documents_are_counted_before_the_run(folder: Path) -> None:
    lines = ['{"ids": [1, 2, 3]}'] * 40 + ['{"ids": "x"}'] * 3
    (folder / "a.jsonl").write_text("\n".join(lines))
    source = sources.open(str(folder / "a.jsonl"), tokens="ids")
    found = PackedDataset(source, seq_len=8, on_error="skip").explain()
    assert (len(found.sample.lengths), found.sample.skipped, found.files) == (40, 3, 1)
    assert "0 without a token, 3 broken" in str(found)


def test_rows_that_hold_no_document_are_explained() -> None:
    packer = BestFitDecreasing(seq_len=16, overflow="drop")
    found = PackedDataset([[1] * 100] * 20, packer=packer).explain()
    assert found.composition.documents_lost == 20
    assert found.row == ""
    assert "100.00% lost" in str(found)


def few_and_many(**options: Any) -> sources.Mixture:
    documents = {"few": [[1] * 10] * 200, "many": [[2] * 10] * 2000}
    return sources.Mixture(documents, weights={"few": 1, "many": 3}, **options)


def test_a_mixture_reports_its_draws() -> None:
    dataset = PackedDataset(few_and_many(), seq_len=20)
    found, loader = dataset.explain(), PackedLoader(dataset)
    for _ in loader:
        pass
    assert found.forecast is not None
    tokens = {row.name: row.tokens for row in loader.by_source()}
    assert {draw.name: round(draw.drawn) for draw in found.forecast.draws} == tokens
    assert [draw.weight for draw in found.forecast.draws] == [0.25, 0.75]
    assert "few: 9.1% of the tokens, 25.0% by its weight; 1 of its epochs" in str(found)


def test_a_source_that_ends_before_the_others_is_named_with_the_share_of_the_run() -> None:
    parts = {"few": ids(5.0, 0.1, 40), "many": ids(5.0, 0.1, 400)}
    mixture = sources.Mixture(parts, weights={"few": 9, "many": 1})
    found = PackedDataset(mixture, seq_len=512, topology=Topology()).explain()
    ends = {name: draw["ends"] for name, draw in found.as_dict()["sources"].items()}
    assert ends == {"few": pytest.approx(1 / 0.9 / 11, abs=0.01), "many": None}
    assert "few ends after 10% of the run" in str(found)
    stops = sources.Mixture(parts, weights={"few": 9, "many": 1}, at_end="stop")
    proportional = sources.Mixture(parts, temperature=1)
    for mixture in (stops, proportional):
        found = PackedDataset(mixture, seq_len=512, topology=Topology()).explain()
        assert [draw["ends"] for draw in found.as_dict()["sources"].values()] == [None, None]
        assert "warning" not in str(found)


def test_of_an_endless_mixture_an_epoch_is_as_many_tokens_as_its_sources_hold() -> None:
    endless = few_and_many(epochs={"few": None, "many": None})
    dataset = PackedDataset(endless, seq_len=20, epochs=None)
    found, loader = dataset.explain(), PackedLoader(dataset)
    assert found.forecast is not None
    for _ in islice(loader, found.forecast.steps.steps):
        pass
    for draw, row in zip(found.forecast.draws, loader.by_source(), strict=True):
        assert draw.drawn == pytest.approx(row.tokens, rel=0.1)
    assert dataset.estimate_steps() is None
    assert "endless; an epoch: about 1,100 rows" in str(found)


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


def test_conversations_and_mixtures_are_written_in_python_by_the_errors_advice(
    folder: Path,
) -> None:
    byte_tokenizer().save("tokenizer.json")
    Path("chatml.jinja").write_text(CHATML)
    write_lines(
        folder / "chats.jsonl", [{"messages": messages("hi", "ab" * (i + 1))} for i in range(90)]
    )
    given = (*sizes(64), "--tokenizer", "tokenizer.json")
    with pytest.raises(ConfigError, match="--chat"):
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


def test_a_file_of_chats_needs_no_line_of_python(folder: Path) -> None:
    byte_tokenizer().save("tokenizer.json")
    Path("chat_template.jinja").write_text(CHATML)
    lines = [{"messages": messages("hi", "ab" * (i + 1))} for i in range(90)]
    write_lines(folder / "chats.jsonl", lines)
    Path("corpus.py").write_text(f"lines = {lines!r}\n")
    given = (*sizes(64), "--tokenizer", "tokenizer.json", "--chat", "--json")
    found = json.loads(run(folder / "chats.jsonl", *given))
    assert found["documents"] == 90
    assert found["loss_share"] < 0.9
    in_memory = json.loads(run("corpus.py:lines", *given))
    assert (in_memory["documents"], in_memory["longest"]) == (90, found["longest"])
    measured = json.loads(
        output_of("bench", folder / "chats.jsonl", *given, "--workers", 0, "--seconds", 0.01)
    )
    assert measured["runs"][0]["tokens"] > 0
    with pytest.raises(ConfigError) as refused:
        run(folder / "chats.jsonl", *given, "--text", "text")
    assert refused.value.setting == "chat"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["in/a.jsonl"], "--tokens NAME, if a field"),
        (["in/a.jsonl", "--tokens", "text", "--seq-len", "1"], "seq_len"),
        (["in/empty.parquet", "--tokens", "ids"], "must contain tokens"),
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
    message = str(error.value.code)  # Python prints it on standard error and exits with 1
    assert message.startswith("streampack: ")
    assert words in message
    assert len(message.splitlines()) == 1
