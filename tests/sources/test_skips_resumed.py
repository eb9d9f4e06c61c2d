"""Skips before or after a block is shuffled are the same after a resume, and are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from tests.support.chats import write_lines
from tests.support.corpora import byte_tokenizer

#: Number 11 is outside of the vocabulary, which is found when the block is shuffled already.
DOCUMENTS = [[900, 900] if i == 11 else [i % 50] * (3 + i % 9) for i in range(60)]
READING = sources.ReadOptions(block_documents=9)


def corpus(kind: str, folder: Path) -> Any:
    if kind == "list":
        return DOCUMENTS
    records = [{"tokens": document} for document in DOCUMENTS]
    if kind == "lines":
        path = write_lines(folder / "a.jsonl", records)
        return sources.JSONL(path, tokens="tokens", reading=READING)
    pq.write_table(pa.Table.from_pylist(records), folder / "a.parquet")
    return sources.Parquet(folder / "a.parquet", tokens="tokens", reading=READING)


@pytest.mark.parametrize("kind", ["list", "lines", "parquet"])
def test_a_run_that_skipped_an_id_goes_on_from_anywhere(kind: str, tmp_path: Path) -> None:
    from streampack import TokenRules

    def loader() -> PackedLoader:
        return PackedLoader(
            PackedDataset(
                corpus(kind, tmp_path), seq_len=32, batch_size=1, lanes=1, on_error="skip",
                token_rules=TokenRules(vocab_size=100), topology=Topology(),
            )
        )  # fmt: skip

    whole = [batch.input_ids.tolist() for batch in loader()]
    assert 900 not in {token for rows in whole for row in rows for token in row}
    for step in range(len(whole) + 1):
        first = loader()
        for _ in zip(range(step), first, strict=False):
            pass
        again = loader()
        again.load_state_dict(first.state_dict())
        assert [batch.input_ids.tolist() for batch in again] == whole[step:]


def test_every_broken_shard_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lines(tmp_path / "good.jsonl", [{"text": "x"}] * 9)
    for number in range(25):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(b"no gzip at all")
    source = sources.JSONL(sorted(map(str, tmp_path.iterdir()), key=lambda p: "good" not in p))
    tokenizer = byte_tokenizer()
    dataset = PackedDataset(
        source, seq_len=32, lanes=1, tokenizer=tokenizer, on_error="skip", topology=Topology()
    )
    list(PackedLoader(dataset))
    assert sum(".jsonl.gz is broken" in message for message in caplog.messages) == 25
