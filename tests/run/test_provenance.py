"""From any piece of any batch back to its tokens in the corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, sources
from streampack.errors import ConfigError
from tests.support.every_source import SEQ_LEN, jsonl, mixture, parquet, token_documents

TOKENS = {"topology": Topology(), "lanes": 2, "provenance": True, "seq_len": SEQ_LEN}


def pieces_with_ids(dataset: PackedDataset) -> Any:
    """Every piece of a run with the ids that the batch has for it."""
    for batch in PackedLoader(dataset):
        ids, documents = batch.input_ids.flatten(), batch.document_ids.flatten()
        pieces = dataset.locate(batch)
        assert len(pieces) == batch.num_documents
        assert pieces == dataset.locate(batch.provenance)
        for number, piece in enumerate(pieces):
            yield piece, ids[documents == number].tolist()


def test_every_piece_of_a_parquet_corpus_is_found_again_in_its_file(tmp_path: Path) -> None:
    path = parquet(tmp_path, "ids", [d.tolist() for d in token_documents()])
    column = pq.read_table(path).column("ids").to_pylist()
    found = 0
    for piece, ids in pieces_with_ids(PackedDataset(sources.Parquet(path, tokens="ids"), **TOKENS)):
        assert piece.source is None
        assert piece.shard == path
        assert column[piece.index][piece.start : piece.stop] == ids
        found += len(ids)
    assert found == sum(map(len, column))


def test_pieces_of_a_mixture_name_their_source_and_json_lines_their_first_byte(
    tmp_path: Path,
) -> None:
    from tests.support.corpora import byte_tokenizer

    source = mixture(tmp_path, ["mds-tokens", "jsonl"])
    lines = jsonl(tmp_path / "jsonl").read_bytes()
    seen = set()
    tokenizer = byte_tokenizer()
    dataset = PackedDataset(
        source, tokenizer=tokenizer, token_rules=TokenRules(eos="as-is"), **TOKENS
    )
    for piece, ids in pieces_with_ids(dataset):
        seen.add(piece.source)
        if piece.source == "jsonl-1":
            assert Path(piece.shard) == tmp_path / "jsonl" / "texts.jsonl"
            text = json.loads(lines[piece.index :].splitlines()[0])["text"]
            assert tokenizer.encode(text).ids[piece.start : piece.stop] == ids
        else:
            assert Path(piece.shard).suffix == ".mds"
    assert seen == {"mds-tokens-0", "jsonl-1"}


def test_pieces_of_an_iterable_are_items_of_a_lane() -> None:
    dataset = PackedDataset(lambda lane, lanes: [[lane] * 3, [lane] * 5], **TOKENS)
    for piece, ids in pieces_with_ids(dataset):
        assert piece.shard == f"lane {ids[0]}"
        assert len(ids) == (3, 5)[piece.index]


def test_a_batch_without_provenance_or_of_another_dataset_is_refused() -> None:
    dataset = PackedDataset([[1, 2, 3]] * 9, seq_len=8, topology=Topology())
    with pytest.raises(ConfigError, match="Pass provenance=True"):
        dataset.locate(next(iter(dataset)))
    other = np.zeros(1, dtype=[(n, np.int64) for n in ("source", "shard", "index", "a", "b")])
    other["source"] = 3
    with pytest.raises(ConfigError, match="is of another dataset"):
        dataset.locate(other)
