"""Long texts: a limit that a worker survives, and bounded memory where texts are encoded."""

from __future__ import annotations

import json
import multiprocessing
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.documents.blocks import ORIGIN, Texts
from streampack.errors import ContentError
from streampack.sources import ReadOptions
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import Tokenizer
from tests.support.chats import CHATML, messages, with_template
from tests.support.corpora import byte_tokenizer

LIMIT = 1000
LONG = "\u00e9" * (LIMIT // 2) + "x"  # one byte too many
READING = ReadOptions(max_document_bytes=LIMIT)


def as_jsonl(folder: Path, texts: list[str]) -> sources.Source:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts))
    return sources.JSONL(path, text="text", reading=READING)


def as_parquet(folder: Path, texts: list[str]) -> sources.Source:
    pq.write_table(pa.table({"text": texts}), folder / "a.parquet")
    return sources.Parquet(folder / "a.parquet", text="text", reading=READING)


def as_items(folder: Path, texts: list[str]) -> sources.Source:
    return sources.Iterable(texts, reading=READING)


def as_mixture(folder: Path, texts: list[str]) -> sources.Source:
    others = sources.Iterable(["short"])
    parts = {"others": others, "long": sources.Iterable(texts, reading=READING)}
    return sources.Mixture(parts, weights={"others": 1, "long": 1})


def as_chats(folder: Path, texts: list[str]) -> sources.Source:
    records = [{"messages": messages("q", text)} for text in texts]
    return sources.Chat(records, reading=READING)


def as_completions(folder: Path, texts: list[str]) -> sources.Source:
    records = [{"prompt": "", "completion": text} for text in texts]
    return sources.Chat(records, reading=READING)


def loader_of(source: Any, **options: Any) -> PackedLoader:
    dataset = PackedDataset(
        source,
        seq_len=64,
        tokenizer=with_template(byte_tokenizer(), CHATML),
        topology=Topology(),
        lanes=1,
        shuffle=False,
        **options,
    )
    return PackedLoader(dataset)


@pytest.mark.parametrize(
    "make", [as_jsonl, as_parquet, as_items, as_mixture, as_chats, as_completions]
)
def test_a_longer_text_is_an_error_of_its_document_or_skipped(make: Any, tmp_path: Path) -> None:
    source = make(tmp_path, ["a", LONG, "b"])
    with pytest.raises(ContentError, match="max_document_bytes=1000") as raised:
        list(loader_of(source))
    assert raised.value.setting == "max_document_bytes"
    assert "max_document_bytes=" in raised.value.remedy
    assert raised.value.document is not None
    assert raised.value.document.casefold() in str(raised.value).casefold()
    loader = loader_of(make(tmp_path, ["a", LONG, "b"]), on_error="skip")
    assert sum(batch.num_documents for batch in loader) == (3 if make is as_mixture else 2)
    assert loader.metrics().skipped == 1


def test_a_text_at_the_limit_is_encoded(tmp_path: Path) -> None:
    (batch, *_) = loader_of(as_items(tmp_path, [LONG[:-1]]))
    assert batch.num_tokens > 0


def encoded_with_memory(sizes: list[int], out: Any) -> None:
    tokenizer = Tokenizer(byte_tokenizer(), eos="as-is")
    texts = ["a line\n" * (size // 7) for size in sizes]
    tokenizer.encode(Texts(texts[:1], np.zeros(1, dtype=ORIGIN)), ErrorPolicy())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    documents = tokenizer.encode(Texts(texts, np.zeros(len(texts), dtype=ORIGIN)), ErrorPolicy())
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out.put((len(documents.tokens), (after - before) << 10))


def test_many_long_texts_take_the_memory_of_a_few() -> None:
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    process = context.Process(target=encoded_with_memory, args=([1 << 18] * 24, out))
    process.start()
    tokens, num_bytes = out.get(timeout=300)
    process.join()
    assert tokens == 24 * ((1 << 18) // 7) * 7
    assert num_bytes < 500 << 20  # 24 encodings at once take a gigabyte
