"""Stage 5: the path through the graph of neighbours, in one process.

The k nearest kept documents of each kept document are the graph; `ordering.traversal` walks it and
merges short runs. Memory: 8 bytes per neighbour for the lists and up to 16 for the graph, and 80
bytes per document.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack.corpus_order.corpus import Corpus
from streampack.corpus_order.search import candidates_of
from streampack.corpus_order.settings import CorpusOrder
from streampack.ordering.neighbours import NONE
from streampack.ordering.traversal import walk_runs


def find_path(job: CorpusOrder, shards: int) -> None:
    """Write the documents along the path (M,) int32, and where its runs begin in it (R,)."""
    duplicate_of = job.files.load("duplicates/duplicate_of.npy", in_memory=True)
    kept = np.flatnonzero(duplicate_of < 0).astype(np.int32)
    ids, similarity = _graph(job, shards, duplicate_of)
    path, runs = walk_runs(ids, similarity)
    lonely = int((ids < 0).all(axis=1).sum())
    job.files.save("path/order.npy", kept[path])
    job.files.save("path/runs.npy", runs)
    job.files.note("path/note.json", {"runs": len(runs), "without_neighbours": lonely})


def _graph(
    job: CorpusOrder, shards: int, duplicate_of: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """(M, k) the nearest kept documents of each, by their number among the kept, and how near."""
    corpus = Corpus(job.files, job.num_parts)
    stays = np.append(duplicate_of < 0, False)  # the last stands for "none"
    position = np.append(np.cumsum(stays[:-1], dtype=np.int32) - 1, -1).astype(np.int32)
    count = int(stays.sum())
    ids = np.full((count, job.k), -1, dtype=np.int32)
    similarity = np.full((count, job.k), NONE, dtype=np.float32)
    at = 0
    for part in range(job.num_parts):
        low, high = corpus.first[part : part + 2]
        found, near = candidates_of(job, shards, part)
        again = job.files.load(f"path/{part:05}.again.npy") - low
        found[again] = job.files.load(f"path/{part:05}.again.ids.npy")
        near[again] = job.files.load(f"path/{part:05}.again.similarity.npy")
        own = stays[low:high]
        found, near = found[own], near[own]
        order = np.argsort(~stays[found], axis=1, kind="stable")[:, : job.k]
        found = np.take_along_axis(found, order, axis=1)
        near = np.take_along_axis(near, order, axis=1)
        ids[at : at + len(found)] = np.where(stays[found], position[found], -1)
        similarity[at : at + len(found)] = near
        at += len(found)
    return ids, similarity
