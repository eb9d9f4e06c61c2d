"""Small runs of every packer and format, which compile the kernels that runs need."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer as Engine
from tokenizers import models

import streampack  # imports its names on first use, because torch takes a second
from streampack._compiler import cache_folders
from streampack._jit import compiled_at_once
from streampack.documents.blocks import gather_ragged, offsets_of
from streampack.ordering import BM25, SimilarityOrder
from streampack.packers.kinds import packer_kinds, with_rows
from streampack.packing import Balance, BestFitDecreasing, Concat
from streampack.sources import JSONL, MDS, Items, Parquet, WebDataset
from streampack.tokenization import Tokenizer, TokenRules

SEQ_LEN = 32
EOS = 199


def compile_kernels() -> list[str]:
    """Compile the kernels of small runs, and return the cache folders that keep them."""
    with TemporaryDirectory(prefix="streampack-warm-") as folder, compiled_at_once():
        for dtype in (np.uint16, np.uint32):  # the dtypes of blocks made from lists
            ids, places = np.zeros(1, dtype), np.arange(2)
            gather_ragged(ids, places[:1], places, ids.copy())
        for dataset in _datasets(Path(folder)):
            loader = streampack.PackedLoader(dataset)
            for batch in loader:
                batch.labels  # noqa: B018
                loader.state_dict()
    return cache_folders()


def _datasets(folder: Path) -> Iterator[streampack.PackedDataset]:
    """Yield a small run of every packer, and of each format with its own kernels."""
    documents = [[n % 200] * (n % 40 + 1) for n in range(300)]
    for kind in packer_kinds().values():
        packer = with_rows(kind, SEQ_LEN)
        for dtype in (np.uint16, np.uint32):
            arrays = [np.array(ids, dtype=dtype) for ids in documents]
            yield _dataset(Items(arrays), packer=packer)
    texts = ["ab" * len(ids) for ids in documents]
    yield _dataset(Items(texts))
    with tarfile.open(folder / "ids.tar", "w") as archive:
        for number, ids in enumerate(documents):
            np.save(buffer := io.BytesIO(), np.array(ids, dtype=np.uint16))
            member = tarfile.TarInfo(f"{number:06d}.npy")
            member.size = buffer.tell()
            buffer.seek(0)
            archive.addfile(member, buffer)
    yield _dataset(WebDataset(folder / "ids.tar", tokens="npy"))
    lines = folder / "ids.jsonl"
    lines.write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in documents))
    yield _dataset(JSONL(lines, tokens="ids"))
    for dtype in (pa.uint16(), pa.int32(), pa.int64()):
        table = pa.table({"ids": pa.array(documents, pa.list_(dtype))})
        pq.write_table(table, folder / f"{dtype}.parquet")
        source = Parquet(folder / f"{dtype}.parquet", tokens="ids")
        yield _dataset(source)
    yield _dataset(source, packer=BestFitDecreasing(seq_len=SEQ_LEN, choice=Balance("attention")))
    _write_mds(folder / "mds", documents)
    yield _dataset(MDS(folder / "mds"))
    for embedder in (None, BM25()):
        order = SimilarityOrder(order_window_documents=64, embedder=embedder)
        packer = Concat(seq_len=SEQ_LEN)
        yield _dataset(Items(documents), packer=packer, order=order, attention="row")
    records = [{"ids": ids, "w": [0.5] * len(ids), "reward": 0.5} for ids in documents]
    fields = {"token_fields": {"w": "float32"}, "document_fields": {"reward": "float32"}}
    yield _dataset(Items(records, tokens="ids"), **fields)


def _write_mds(folder: Path, documents: list[list[int]]) -> None:
    """Write one shard of ids in the layout that `streampack.formats.mds.index` reads."""
    folder.mkdir()
    config = {
        "column_encodings": ["ndarray:uint16"],
        "column_names": ["tokens"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "version": 2,
    }
    values = [bytes((4, len(ids))) + np.array(ids, "<u2").tobytes() for ids in documents]
    samples = [np.uint32(len(value)).tobytes() + value for value in values]
    head = json.dumps(config).encode()
    begin = 4 * (len(samples) + 2) + len(head)
    places = begin + offsets_of(np.array([len(sample) for sample in samples]))
    table = np.array([len(samples), *places], "<u4").tobytes()
    data = b"".join([table, head, *samples])
    (folder / "shard.mds").write_bytes(data)
    raw = {"basename": "shard.mds", "bytes": len(data), "hashes": {}}
    shard = {**config, "raw_data": raw, "samples": len(samples), "zip_data": None}
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))


def _dataset(source: Any, **settings: Any) -> streampack.PackedDataset:
    settings = {"packer": BestFitDecreasing(seq_len=SEQ_LEN), **settings}
    if source.tokenized:
        settings["token_rules"] = TokenRules(eos_id=EOS)
    else:
        settings["tokenizer"] = _tokenizer()
    return streampack.PackedDataset(source, batch_size=2, **settings)


def _tokenizer() -> Tokenizer:
    """Make a tokenizer with one id per letter."""
    vocabulary = {letter: number for number, letter in enumerate("ab</s>")}
    engine = Engine(models.BPE(vocab=vocabulary, merges=[]))
    engine.add_special_tokens(["</s>"])
    return Tokenizer(engine, eos_id=engine.token_to_id("</s>"))
