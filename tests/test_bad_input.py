"""Bad input, as a user meets it: a clear error or the declared policy; nothing lost silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import (
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    sources,
)
from streampack.errors import ContentError, PlanError
from streampack.packing import BestFitDecreasing, Buckets, Concat, Pad
from tests.support.corpora import byte_tokenizer
from tests.support.memory_source import MemorySource


def load(source: Any, **options: Any) -> PackedLoader:
    values: dict[str, Any] = {"seq_len": 16, "lanes": 1, "topology": Topology(), **options}
    if "packer" in values:
        del values["seq_len"]
    loader = PackedLoader(PackedDataset(source, **values))
    for _ in loader:
        pass
    return loader


def ids(*lengths: int) -> list[Any]:
    return [np.arange(n).astype(np.uint16) for n in lengths]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32])
def test_a_token_id_beyond_the_vocabulary_is_named_or_skipped(dtype: Any) -> None:
    documents = [tokens.astype(dtype) for tokens in ids(5, 5, 5)]
    documents[1] = documents[1] + dtype(100)
    with pytest.raises(ContentError, match=r"Document 1 of .* token id 100"):
        load(MemorySource([documents]), token_rules=TokenRules(vocab_size=50))
    metrics = load(
        MemorySource([documents]), token_rules=TokenRules(vocab_size=50), on_error="skip"
    ).metrics()
    assert (metrics.skipped, metrics.composition.placed) == (1, 10)


def test_empty_documents_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in ["ab", "", "cde", ""]))
    metrics = load(str(path), tokenizer=byte_tokenizer()).metrics()
    assert metrics.empty_documents == 2
    assert metrics.composition.placed == 2 + 3 + 2  # with an EOS each


@pytest.mark.parametrize("packer", [BestFitDecreasing, Concat, Pad])
def test_a_document_longer_than_the_window_loses_nothing(packer: Any) -> None:
    loader = load(
        MemorySource([ids(3, 60_000, 5)]),
        packer=packer(seq_len=16),
        token_rules=TokenRules(eos_id=1),
    )
    assert loader.metrics().composition.placed == 60_008


def test_overlong_documents_can_be_an_error_that_names_them(tmp_path: Path) -> None:
    packer = BestFitDecreasing(seq_len=16, overflow="error")
    with pytest.raises(PlanError, match=r"^Document 1 of memory-0 has 40 tokens"):
        load(MemorySource([ids(5, 40)]), packer=packer, shuffle=False)
    with pytest.raises(PlanError, match=r"^Document 0 of memory-0 has 9999 tokens"):
        load(MemorySource([ids(9999)]), packer=packer)  # more than the window could hold
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"ids": [1, 2]}\n' + json.dumps({"ids": [1] * 40}))
    with pytest.raises(PlanError, match=rf"^The line at byte 16 of {lines} has 40 tokens"):
        load(sources.JSONL(lines, tokens="ids"), packer=packer)
    two = {"a": [[1]], "b": [[1], [1] * 40]}
    with pytest.raises(PlanError, match=r'^Item 1 of the list of source "b" has 40 tokens'):
        load(sources.Mixture(two, weights={"a": 0.5, "b": 0.5}), packer=packer)


def test_a_batch_has_eight_rows_unless_its_size_is_given() -> None:
    def shape(**options: Any) -> tuple[int, int]:
        dataset = PackedDataset(MemorySource([ids(5)]), topology=Topology(), lanes=1, **options)
        (batch,) = PackedLoader(dataset)
        return batch.rows, batch.seq_len

    assert shape(seq_len=16) == (8, 16)
    assert shape(seq_len=16, batch_size=3) == (3, 16)
    buckets = Buckets(seq_lens=(8, 16), shares=(1, 0))
    assert shape(packer=buckets) == (2, 8)  # as many as one row of the longest takes
    assert shape(packer=buckets, batch_size=4) == (8, 8)
    sized = Buckets(seq_lens=(8, 16), shares=(1, 0), batch_tokens=64)
    assert shape(packer=sized) == (8, 8)


def test_a_corpus_broken_throughout_does_not_pass_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' + "not json\n" * 11_000)
    with pytest.raises(ContentError, match="10,000 broken documents"):
        load(str(path), tokenizer=byte_tokenizer(), on_error="skip")
    path.write_text(('{"text": "good"}\n' + "not json\n" * 3) * 4000)
    assert load(str(path), tokenizer=byte_tokenizer(), on_error="skip")
