"""Stages 6 and 7: compute the path through the neighbours, and write the shards along it.

The k nearest kept documents of each kept document are a graph; `ordering.traversal` walks it and
merges short runs, in one process. Memory: 8 bytes per neighbour for the lists and up to 16 for the
graph, and 120 bytes per document; with a limit of similarity about 1 KB per document in all.

A shard ends at the last run that fits it whole; a run larger than a shard is cut. So a reader that
shuffles shards, but not documents, keeps related documents together.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.conversion.folders import writing_to
from streampack.conversion.shards import OVERHEAD, Payload, shard_name, write_shard
from streampack.corpus_order.corpus import Corpus
from streampack.corpus_order.search import candidates_of
from streampack.corpus_order.settings import CorpusOrder
from streampack.ordering.neighbours import NONE
from streampack.ordering.traversal import walk_runs

NAMED = 1 << 22  # documents with names in memory at a time


def plan_shards(job: CorpusOrder) -> int:
    """Write the offsets (S + 1,) of the shards along the path; return S."""
    corpus = Corpus(job.files, job.num_parts)
    dtype = corpus.dtype
    width = 1 if dtype == "str" else np.dtype(dtype).itemsize
    order = job.files.load("path/order.npy", in_memory=True)
    sizes = corpus.lengths()[order] * width + OVERHEAD
    runs = job.files.load("path/runs.npy", in_memory=True)
    starts = cut_shards(sizes, np.append(runs, len(order)), job.shard_bytes)
    job.files.save("write/starts.npy", np.append(starts, len(order)))
    return len(starts)


@kernel
def cut_shards(sizes: NDArray[np.int64], runs: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return the offsets (S,) int64 of shards among documents with these sizes (M,).

    Args:
        sizes: sizes of the documents, along the path.
        runs: (R + 1,) offsets of the runs, ending with M.
        limit: largest size of a shard, unless it holds a single document.
    """
    starts = []
    start = run = 0  # runs[run] is the first offset of a run above the shard's
    while start < len(sizes):
        starts.append(start)
        stop, total = start + 1, sizes[start]
        while stop < len(sizes) and total + sizes[stop] <= limit:
            total += sizes[stop]
            stop += 1
        last = start
        while run < len(runs) and runs[run] <= stop:
            last = max(last, runs[run])
            run += 1
        start = last if last > start else stop
    return np.array(starts, dtype=np.int64)


def write_part(job: CorpusOrder, shard: int) -> None:
    """Write a shard, move it into place, and note its content."""
    corpus = Corpus(job.files, job.num_parts)
    low, high = job.files.load("write/starts.npy")[shard : shard + 2]
    ids = np.asarray(job.files.load("path/order.npy")[low:high], dtype=np.int64)
    payloads: list[Payload] = [""] * len(ids)
    for number, where in corpus.by_part(ids):
        part = corpus.part(number)
        for i in where.tolist():
            payloads[i] = part.payload(int(ids[i] - corpus.first[number]))
    dtype = corpus.dtype
    if dtype != "str":
        payloads = [np.asarray(ids_of).astype(dtype, copy=False) for ids_of in payloads]
    folder = job.files.folder
    with writing_to(folder), TemporaryDirectory(prefix=".shard-", dir=folder) as scratch:
        file = write_shard(Path(scratch) / shard_name(shard), payloads, job.compression)
        job.destination.put(file, file.name)
    job.files.note(f"write/{shard:05}.json", {"documents": len(ids)})


def forget_missing(job: CorpusOrder, shards: int) -> None:
    """Remove the notes of shards that are missing in the destination."""
    existing = set(job.destination.names())
    for shard in range(shards):
        if shard_name(shard) not in existing:
            job.files.path(f"write/{shard:05}.json").unlink(missing_ok=True)


def write_documents(job: CorpusOrder, file: Path) -> None:
    """Write a Parquet file with each document's position in the source, along the path."""
    corpus = Corpus(job.files, job.num_parts)
    order = job.files.load("path/order.npy")
    kind = pa.schema([("file", pa.dictionary(pa.int32(), pa.string())), ("index", pa.int64())])
    with pq.ParquetWriter(file, kind) as writer:
        for start in range(0, len(order), NAMED):
            origin = corpus.origins(np.asarray(order[start : start + NAMED], dtype=np.int64))
            shards, which = np.unique(origin["shard"], return_inverse=True)
            names = [job.source._shard_name(shard) for shard in shards.tolist()]
            files = pa.DictionaryArray.from_arrays(pa.array(which, pa.int32()), names)
            writer.write_table(pa.table([files, origin["index"]], schema=kind))


def find_path(job: CorpusOrder, shards: int) -> None:
    """Write the documents along the path (M,) int32, and the offsets (R,) of its runs."""
    duplicate_of = job.files.load("duplicates/duplicate_of.npy", in_memory=True)
    kept = np.flatnonzero(duplicate_of < 0).astype(np.int32)
    ids, similarity = _graph(job, shards, duplicate_of)
    corpus = Corpus(job.files, job.num_parts)
    limit = job.similarity.limit(corpus.lengths()[kept], corpus.units_per_token)
    path, runs = walk_runs(ids, similarity, limit=limit)
    lonely = int((ids < 0).all(axis=1).sum())
    job.files.save("path/order.npy", kept[path])
    job.files.save("path/runs.npy", runs)
    job.files.note("path/note.json", {"runs": len(runs), "without_neighbours": lonely})


def _graph(
    job: CorpusOrder, shards: int, duplicate_of: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the nearest kept documents (M, k), by index among the kept ones, and similarities.

    With a limit of similarity they are (M, 3 k).
    """
    width = job.similarity.num_neighbours
    corpus = Corpus(job.files, job.num_parts)
    stays = np.append(duplicate_of < 0, False)  # the last entry is for -1
    position = np.append(np.cumsum(stays[:-1], dtype=np.int32) - 1, -1).astype(np.int32)
    count = int(stays.sum())
    ids = np.full((count, width), -1, dtype=np.int32)
    similarity = np.full((count, width), NONE, dtype=np.float32)
    at = 0
    for part in range(job.num_parts):
        low, high = corpus.first[part : part + 2]
        neighbours, near = candidates_of(job, shards, part)
        again = job.files.load(f"path/{part:05}.again.npy") - low
        neighbours[again] = job.files.load(f"path/{part:05}.again.ids.npy")
        near[again] = job.files.load(f"path/{part:05}.again.similarity.npy")
        own = stays[low:high]
        neighbours, near = neighbours[own], near[own]
        order = np.argsort(~stays[neighbours], axis=1, kind="stable")[:, :width]
        neighbours = np.take_along_axis(neighbours, order, axis=1)
        near = np.take_along_axis(near, order, axis=1)
        ids[at : at + len(neighbours)] = np.where(stays[neighbours], position[neighbours], -1)
        similarity[at : at + len(neighbours)] = near
        at += len(neighbours)
    return ids, similarity
