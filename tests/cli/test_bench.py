"""`streampack bench` loads a corpus and says at what rate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streampack.errors import ConfigError
from tests.support.corpora import byte_tokenizer
from tests.support.program import output_of


@pytest.fixture
def corpus(tmp_path: Path) -> list[str]:
    lines = [json.dumps({"text": f"document {i} " * (i % 40 + 1)}) for i in range(200)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return [
        "bench", str(tmp_path / "texts.jsonl"), "--tokenizer", str(tmp_path / "tokenizer.json"),
        "--seq-len", "128", "--batch-rows", "2", "--seconds", "0.05",
    ]  # fmt: skip


def test_rates_belong_together(corpus: list[str]) -> None:
    asked = ("--workers", 0, "--workers", 1, "--workers", 7)
    found = json.loads(output_of(*corpus, *asked, "--json"))
    assert found["lanes"] == 1  # so one worker is the most
    assert [own["workers"] for own in found["runs"]] == [0, 1]
    for own in found["runs"]:
        assert own["batches"] >= 1
        assert 0 < own["tokens"] <= own["batches"] * 256
        assert own["seconds"] >= 0.05
        assert own["tokens_per_s"] == pytest.approx(own["tokens"] / own["seconds"])
        assert own["batches_per_s"] == pytest.approx(own["batches"] / own["seconds"])
        assert 0 <= own["waiting"] <= 1
        assert own["first_batch_s"] > 0
        assert set(own["stage_s"]) == {"read_s", "prepare_s", "order_s", "pack_s", "gather_s"}


def test_in_words_it_has_a_line_for_each_number_of_workers(corpus: list[str]) -> None:
    output = output_of(*corpus, "--workers", 0, "--workers", 2)
    assert "has 1 lane, and no more workers" in output
    assert "does not wait" in output
    assert "Of the time in which batches are made" in output
    rows = [line.split() for line in output.splitlines()]
    assert [row[0] for row in rows if row and row[0].isdecimal()] == ["0", "1"]
    assert "loop waits" not in output


def test_with_a_step_the_loop_waits_less_than_without(corpus: list[str]) -> None:
    found = json.loads(output_of(*corpus, "--workers", 0, "--step-ms", 20, "--json"))
    assert found["step_s"] == 0.02
    assert "loop waits" in output_of(*corpus, "--workers", 0, "--step-ms", 20)
    assert found["runs"][0]["batches"] <= 4


def test_a_corpus_that_cannot_be_loaded_is_refused(tmp_path: Path, corpus: list[str]) -> None:
    with pytest.raises(ConfigError, match="no tokenizer"):
        output_of(*corpus[:2])
    with pytest.raises(ConfigError, match="nowhere"):
        output_of("bench", tmp_path / "nowhere.jsonl")
