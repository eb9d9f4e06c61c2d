"""Nearest neighbours for large windows through faiss (the extra `[ordering]`).

Steps:
  1. An inverted file over the normalised vectors gives each document more candidates than the k
     it needs.
  2. The candidates' cosines are recomputed exactly, as in `neighbours`.
  3. Near-duplicates among the candidates, also as whole documents (`alike`), are removed in
     order of arrival, and the k nearest kept candidates remain, ties by arrival.

Cost: about N * sqrt(N) * D. Lost: neighbours and near-duplicates in lists that are not searched.
The results of faiss may differ between machines, so a state stores the order.

Source: "In-Context Pretraining: Language Modeling Beyond Document Boundaries" also searches an
inverted file of faiss, with product quantization, which a window in memory does not need.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel, kernel_of
from streampack.extras import missing_package
from streampack.ordering.neighbours import (
    NONE,
    Found,
    Neighbours,
    Wholes,
    WholeVectors,
    alike,
    cosine,
    offer,
    on_grid,
    squared_norms,
)

LISTS_SEARCHED = 32
MARGIN = 3  # candidates per neighbour, so that k remain if many are dropped


def require_faiss() -> Any:
    """Import faiss.

    Raises:
        ConfigError: faiss is not installed.
    """
    try:
        import faiss
    except ImportError:
        instead = ', or compare every pair with search="exact"'
        raise missing_package("faiss", "ordering", instead, setting="search") from None
    return faiss


def find_neighbours_approximately(
    vectors: NDArray[np.float32],
    k: int = 10,
    duplicate_threshold: float = 1.0,
    wholes: Wholes | None = None,
) -> Neighbours:
    """Like `find_neighbours`, but only among candidates found by faiss."""
    faiss = require_faiss()
    norms = squared_norms(vectors)
    lengths = np.sqrt(norms)[:, None].astype(np.float32)
    unit = np.ascontiguousarray(vectors / lengths)
    count, dimension = unit.shape
    lists = max(int(np.sqrt(count)), 1)
    index = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(dimension), dimension, lists, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.min_points_per_centroid = 1  # faiss warns about small windows
    index.train(unit)
    index.add(unit)
    index.nprobe = min(LISTS_SEARCHED, lists)
    _, candidates = index.search(unit, min(MARGIN * k + 1, count))
    candidates = np.sort(candidates.astype(np.int64), axis=1)  # offers must be in order of arrival
    cosines = np.full(candidates.shape, NONE, dtype=np.float64)
    threshold = on_grid(duplicate_threshold)
    compute_cosines(vectors, norms, candidates, cosines)
    wholes = Wholes(None) if wholes is None else wholes
    if threshold < 1 and len(wholes.made.row):
        over = cosines > threshold
        wanted = over.any(axis=1)
        wanted[candidates[over]] = True
        wholes.embed(wanted)
    result = Found.nothing(count, k)
    _choose(candidates, cosines, threshold, wholes.made, result)
    return result.of_kept()


@kernel_of(lambda vectors, _, candidates, *__: candidates.size * vectors.shape[1])
def compute_cosines(
    vectors: NDArray[np.float32],
    norms: NDArray[np.float64],
    candidates: NDArray[np.int64],
    cosines: NDArray[np.float64],
) -> None:
    """Return the cosines (N, C) of the first N documents with their candidates among all."""
    count, width = candidates.shape
    for i in range(count):
        mine = vectors[i]
        for c in range(width):
            j = candidates[i, c]
            if j < 0 or j == i:
                continue
            other = vectors[j]
            product = np.float64(0.0)
            for d in range(len(mine)):
                product += np.float64(mine[d]) * np.float64(other[d])
            cosines[i, c] = cosine(product, norms[i], norms[j])


@kernel
def _choose(
    candidates: NDArray[np.int64],
    cosines: NDArray[np.float64],
    threshold: float,
    whole: WholeVectors,
    out: Found,
) -> None:
    """Mark near-duplicates, then select the k nearest kept documents."""
    duplicate_of, ids, similarity = out
    count, width = candidates.shape
    for i in range(count):
        for c in range(width):
            j = candidates[i, c]
            if (
                0 <= j < i
                and cosines[i, c] > threshold
                and duplicate_of[j] < 0
                and alike(i, j, whole, threshold)
            ):
                duplicate_of[i] = j
                break
    for i in range(count):
        for c in range(width):
            j = candidates[i, c]
            if j >= 0 and j != i and duplicate_of[j] < 0:
                offer(ids[i], similarity[i], j, cosines[i, c])
