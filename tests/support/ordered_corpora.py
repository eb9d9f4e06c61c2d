"""Corpora of topics with planted copies, jobs that put them in order, and their output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streampack import sources
from streampack.conversion.shards import Destination
from streampack.corpus_order import CorpusOrder
from streampack.sources.reading import ReadOptions
from tests.support.topics import topical

COPIES = 30


def write_topics(folder: Path, count: int = 400, files: int = 2) -> Path:
    """Parquet files of topical documents, the last `COPIES` of them copies of the first."""
    documents, _ = topical(count)
    arrays = [documents.document(i) for i in range(count)]
    arrays += [arrays[i].copy() for i in range(COPIES)]
    return write_parquet(folder, arrays, files)


def write_parquet(folder: Path, documents: Sequence[Any], files: int = 1) -> Path:
    """Ids or texts in Parquet files of small row groups."""
    folder.mkdir(parents=True)
    name = "text" if isinstance(documents[0], str) else "tokens"
    size = -(-len(documents) // files)
    for number in range(files):
        rows = documents[number * size : (number + 1) * size]
        kind = pa.string() if name == "text" else pa.list_(pa.uint32())
        table = pa.table({name: pa.array(rows, kind)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=50)
    return folder


def make_job(source: Path, out: Path | str, **settings: Any) -> CorpusOrder:
    """A job of three parts and small shards."""
    settings = {"parts": 3, "shard_bytes": 20_000, **settings}
    return CorpusOrder(
        source=sources.open(str(source), reading=ReadOptions(open_shards=1)),
        destination=Destination(str(out)),
        **settings,
    )


def shards_of(folder: Path) -> dict[str, bytes]:
    """All that a job leaves, but its summary, which has times in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "summary.json"
    }


def documents_of(folder: Path) -> list[Any]:
    """The documents of a folder of Parquet files, in order."""
    found: list[Any] = []
    for file in sorted(folder.glob("*.parquet")):
        found += pq.read_table(file).column(0).to_pylist()
    return [tuple(document) if isinstance(document, list) else document for document in found]


def counted(documents: Sequence[Any]) -> Counter[Any]:
    """Count the occurrences of each document."""
    return Counter(documents)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return unit vectors as the embedding stage leaves them, in float64."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    halved = (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float16).astype(np.float64)
    lengths = np.linalg.norm(halved, axis=1, keepdims=True)
    return halved / np.where(lengths == 0, 1, lengths)
