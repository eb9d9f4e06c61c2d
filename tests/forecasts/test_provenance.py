"""From any piece of any batch back to its tokens in the corpus."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, sources
from streampack.errors import ConfigError
from streampack.forecasts.provenance import Piece, text_of
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


def test_every_piece_of_a_parquet_corpus_is_found_in_its_file(tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match="got 3"):
        dataset.locate(other)


@pytest.mark.parametrize(
    "kind", ["jsonl", "jsonl-gz", "mds-text", "mds-tokens", "megatron", "npy", "table", "tar"]
)
def test_a_piece_leads_to_the_text_of_its_whole_document(tmp_path: Path, kind: str) -> None:
    from tests.support.corpora import byte_tokenizer
    from tests.support.every_source import SOURCES

    tokenizer = byte_tokenizer()
    source = SOURCES[kind](tmp_path)
    dataset = PackedDataset(
        source, tokenizer=None if source.tokenized else tokenizer,
        token_rules=TokenRules(eos="as-is"), **TOKENS,
    )  # fmt: skip
    count = 0
    for piece, ids in pieces_with_ids(dataset):
        text = dataset.text_of(piece)
        if source.tokenized:
            assert [int(word) for word in text.split()][piece.start : piece.stop] == ids
        else:
            assert tokenizer.encode(text).ids[piece.start : piece.stop] == ids
        count += 1
    assert count > 20


def test_no_text_is_invented_for_documents_that_cannot_be_reread(tmp_path: Path) -> None:
    iterable = PackedDataset(lambda: [[1, 2, 3]] * 4, **{**TOKENS, "lanes": 1})
    piece, _ = next(pieces_with_ids(iterable))
    with pytest.raises(ConfigError, match=r"batch\.decode"):
        iterable.text_of(piece)
    path = parquet(tmp_path, "ids", [d.tolist() for d in token_documents()])
    dataset = PackedDataset(sources.Parquet(path, tokens="ids"), **TOKENS)
    piece, _ = next(pieces_with_ids(dataset))
    with pytest.raises(ConfigError, match="no document 1000"):
        dataset.text_of(replace(piece, index=1000))
    with pytest.raises(ConfigError, match="must be from a file of the dataset"):
        dataset.text_of(replace(piece, shard="other.parquet"))


def test_of_a_conversation_the_messages_are_given_as_json(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    messages = [{"role": "user", "content": "é?"}, {"role": "assistant", "content": "yes"}]
    path.write_text(json.dumps({"messages": messages}))
    source = sources.Chat(str(path))
    piece = Piece(None, str(path), 0, 0, 1)
    assert json.loads(text_of(source, piece, None))["messages"] == messages
