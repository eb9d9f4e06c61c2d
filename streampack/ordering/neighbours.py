"""Nearest neighbours by cosine, and near-duplicates confirmed on whole documents.

Steps, for documents in order of arrival, a block at a time:
  1. One matrix product compares the block with itself and all documents before it.
  2. A document is a near-duplicate of an earlier kept one if their cosine exceeds the threshold,
     both for vectors and for whole documents (`alike`). It is left out of the following steps.
  3. A kept document and each kept one before it are offered to each other's k nearest. An offer
     must exceed the least of the k, and offers come in order of arrival, so the earlier document
     wins a tie.

Cost: N * N * D multiplications and additions, half of the full matrix, for duplicates and
neighbours together; memory for one block of it. Nothing is approximate.

Results are the same on any machine: integer vectors with a squared length up to 2**24 have exact
float32 products, because by the Cauchy-Schwarz inequality each partial sum is an integer up to
2**24; other vectors are multiplied in float64 (exact up to 2**53). A cosine then takes one IEEE
product, square root and division, which round in the same way everywhere. Cosines are rounded to
multiples of 2**-40, so that equal ones compare as equal: for vectors that are not integers, the
last bits depend on the order of summation.

Source: the graph and the removal follow "In-Context Pretraining: Language Modeling Beyond Document
Boundaries"; the paper searches approximately, as `approximate` does for large windows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents.blocks import Documents
from streampack.ordering.hashing import HashedNgrams

PIECE = 1 << 18  # tokens embedded at once, to which the memory of the hash table is proportional


class WholeVectors(NamedTuple):
    """Vectors of whole documents, for kernels.

    Attributes:
        row: (N,) int64, index of each document's vector, or -1 before it is computed. Empty if
            candidates count as duplicates without a comparison of whole documents.
        vectors: (C, D) int32; norms: (C,) float64, their squared lengths.
    """

    row: NDArray[np.int64]
    vectors: NDArray[np.int32]
    norms: NDArray[np.float64]


class Wholes:
    """Vectors of whole documents, computed once a document is a candidate.

    Steps:
      1. Two documents are candidates if the cosine of their heads is above the threshold, for which
         a shared licence or preamble is enough.
      2. Candidates are embedded whole, by hashed n-grams (`hashing`); vectors of a document longer
         than 2**18 tokens are sums over its pieces.
      3. The later one is a near-duplicate if the cosine of the whole documents exceeds the same
         threshold.

    Whole documents are compared by their tokens with any embedder: models read only the first few
    hundred tokens, and documents on one topic are not duplicates.

    Cost: candidates are embedded once, and each pair of them takes D multiplications. Other
    documents are not embedded whole. Vectors, products and lengths are integers, so the result is
    exact.

    Source: "In-Context Pretraining: Language Modeling Beyond Document Boundaries" removes documents
    by the similarity of the embeddings of their heads; step 3 is ours.

    Attributes:
        made: vectors computed so far.
    """

    def __init__(self, documents: Documents | None, embedder: HashedNgrams | None = None) -> None:
        self._documents = documents
        self._embedder = embedder or HashedNgrams()
        self.made = WholeVectors(
            np.full(0 if documents is None else len(documents), -1, dtype=np.int64),
            np.zeros((0, self._embedder.dimension), dtype=np.int32),
            np.zeros(0, dtype=np.float64),
        )

    def embed(self, wanted: NDArray[np.bool_]) -> None:
        """Compute the missing vectors of the documents marked in `wanted` (N,)."""
        row, vectors, norms = self.made
        new = np.flatnonzero(wanted & (row < 0)) if len(row) else row
        if not len(new):
            return
        row[new] = len(vectors) + np.arange(len(new))
        more = self._vectors(new)
        vectors = np.concatenate([vectors, more])
        self.made = WholeVectors(row, vectors, np.concatenate([norms, whole_norms(more)]))

    def _vectors(self, chosen: NDArray[np.int64]) -> NDArray[np.int32]:
        assert self._documents is not None
        documents = self._documents.take(chosen)
        lengths = documents.lengths
        pieces = np.maximum(-(-lengths // PIECE), 1)
        first = np.concatenate([[0], np.cumsum(pieces)[:-1]])
        number = np.arange(pieces.sum()) - np.repeat(first, pieces)
        starts = np.repeat(documents.offsets[:-1], pieces) + number * PIECE
        offsets = np.append(starts, documents.offsets[-1])
        cut = Documents(documents.tokens, offsets, documents.origin[np.repeat(chosen * 0, pieces)])
        vectors = self._embedder(cut).astype(np.int32)
        return np.add.reduceat(vectors, first, axis=0)


def whole_norms(vectors: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the squared lengths (N,) of whole documents' vectors (N, D); 1 for a zero vector."""
    whole = vectors.astype(np.int64)
    norms: NDArray[np.int64] = np.maximum((whole * whole).sum(axis=1), 1)
    return norms.astype(np.float64)


@kernel
def alike(i: int, j: int, whole: WholeVectors, threshold: float) -> bool:
    """Return True if the whole documents' cosine exceeds the threshold, or is not available."""
    row, vectors, norms = whole
    if len(row) == 0 or row[i] < 0 or row[j] < 0:
        return True
    mine, other = vectors[row[i]], vectors[row[j]]
    product = np.int64(0)
    for d in range(len(mine)):
        product += np.int64(mine[d]) * np.int64(other[d])
    return bool(np.float64(product) / np.sqrt(norms[row[i]] * norms[row[j]]) > threshold)


BLOCK = 256  # documents per matrix product: BLOCK x N products are held at a time
EXACT_FLOAT32 = 1 << 24
ONE = 1099511627776.0  # 2**40: cosines are multiples of its inverse
SLACK = 1e-9  # above the rounding error of a cosine
NONE = -2.0  # below every cosine: no neighbour


class Neighbours(NamedTuple):
    """The M kept documents of N, and the nearest neighbours of each.

    Attributes:
        kept: (M,) int64, ascending, documents that are not near-duplicates.
        duplicate_of: (N,) int64, a similar earlier kept document for a dropped one; -1 if kept.
        ids: (M, k) int64, neighbours as positions in `kept`, nearest first, ties by arrival; padded
            with -1 if there are fewer than k.
        similarity: (M, k) float64, cosines of the neighbours, multiples of 2**-40.
    """

    kept: NDArray[np.int64]
    duplicate_of: NDArray[np.int64]
    ids: NDArray[np.int64]
    similarity: NDArray[np.float64]


class Found(NamedTuple):
    """Output of a search over all N documents, in order of arrival; see `Neighbours`."""

    duplicate_of: NDArray[np.int64]
    ids: NDArray[np.int64]
    similarity: NDArray[np.float64]

    @classmethod
    def nothing(cls, count: int, k: int) -> Found:
        """Allocate an empty result for `count` documents with `k` neighbours each."""
        ids = np.full((count, k), -1, dtype=np.int64)
        return cls(np.full(count, -1, dtype=np.int64), ids, np.full((count, k), NONE))

    def of_kept(self) -> Neighbours:
        """Return the neighbours of the kept documents, by positions among the kept ones."""
        kept = np.flatnonzero(self.duplicate_of < 0)
        # The last entry maps -1 to -1.
        position = np.full(len(self.duplicate_of) + 1, -1, dtype=np.int64)
        position[kept] = np.arange(len(kept))
        return Neighbours(kept, self.duplicate_of, position[self.ids[kept]], self.similarity[kept])


def squared_norms(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return squared lengths (N,) float64 of vectors (N, D); 1 for a zero vector."""
    norms = np.asarray(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    norms[norms == 0] = 1.0
    return norms


def find_neighbours(
    vectors: NDArray[np.float32],
    k: int = 10,
    duplicate_threshold: float = 1.0,
    wholes: Wholes | None = None,
) -> Neighbours:
    """Find the k nearest neighbours of each document, and remove near-duplicates.

    Args:
        vectors: (N, D), in order of arrival; a zero vector has cosine 0 to all.
        k: neighbours of each, at least 1.
        duplicate_threshold: cosine above which the later document is dropped; 1 drops none.
        wholes: whole documents, for which the cosine must exceed the threshold too; None compares
            only the vectors.
    """
    count = len(vectors)
    norms = squared_norms(vectors)
    exact = norms.max(initial=0) <= EXACT_FLOAT32 and bool((vectors == np.rint(vectors)).all())
    factors: NDArray[Any] = vectors.astype(np.float32 if exact else np.float64, copy=False)
    threshold = on_grid(duplicate_threshold)
    wholes = Wholes(None) if wholes is None else wholes
    result = Found.nothing(count, k)
    least = np.full(count, NONE, dtype=np.float64)
    for first in range(0, count, BLOCK):
        stop = min(first + BLOCK, count)
        products = factors[first:stop] @ factors[:stop].T
        if threshold < 1 and len(wholes.made.row):
            wholes.embed(_candidates(products, first, norms, threshold))
        _compare(products, first, norms, threshold, wholes.made, result, least)
    return result.of_kept()


def on_grid(threshold: float) -> float:
    """Round a threshold like cosines, so that a cosine equal to it does not exceed it."""
    return float(np.rint(threshold * ONE) / ONE)


def _candidates(
    products: NDArray[Any], first: int, norms: NDArray[np.float64], threshold: float
) -> NDArray[np.bool_]:
    """Return (N,) bool: a superset of the documents that `_compare` has to compare whole."""
    wanted = np.zeros(len(norms), dtype=np.bool_)
    least = max(threshold - SLACK, 0.0) * np.sqrt(norms)
    for i, row in enumerate(products, start=first):
        like = (row[:i] > 0) & (row[:i] >= least[:i] * np.sqrt(norms[i]))
        wanted[:i] |= like
        wanted[i] |= like.any()
    return wanted


@kernel
def _compare(
    products: NDArray[np.generic],
    first: int,
    norms: NDArray[np.float64],
    threshold: float,
    whole: WholeVectors,
    out: Found,
    least: NDArray[np.float64],
) -> None:
    """Compare documents from `first` on, one per row of `products`, with all earlier ones.

    `whole` has every candidate. An offer must exceed `least` (N,): a document's lowest similarity,
    or infinity for a dropped one.
    """
    duplicate_of, ids, similarity = out
    cosines = np.empty(first + len(products), dtype=np.float64)
    for r in range(len(products)):
        i = first + r
        row = products[r, :i]
        before = norms[:i]
        similarities = cosines[:i]
        wanted = least[:i]
        mine = norms[i]
        for j in range(i):
            similarities[j] = cosine(row[j], mine, before[j])
        for j in range(i):
            if (
                similarities[j] > threshold
                and duplicate_of[j] < 0
                and alike(i, j, whole, threshold)
            ):
                duplicate_of[i] = j
                least[i] = np.inf
                break
        if duplicate_of[i] >= 0:
            continue
        for j in range(i):
            if similarities[j] > wanted[j]:
                wanted[j] = offer(ids[j], similarity[j], i, similarities[j])
            if similarities[j] > least[i] and duplicate_of[j] < 0:
                least[i] = offer(ids[i], similarity[i], j, similarities[j])


@kernel
def cosine(product: float | np.floating[Any], mine: float, other: float) -> float:
    """Return a cosine, rounded to 2**-40, from a product and two squared lengths above 0."""
    return float(np.rint(np.float64(product) / np.sqrt(mine * other) * ONE) / ONE)


@kernel
def offer(ids: NDArray[np.int64], similarity: NDArray[np.float64], j: int, value: float) -> float:
    """Insert j into a document's (k,) neighbours, nearest first; return the least similarity."""
    at = len(ids) - 1
    if value <= similarity[at]:
        return float(similarity[at])
    while at > 0 and similarity[at - 1] < value:
        ids[at] = ids[at - 1]
        similarity[at] = similarity[at - 1]
        at -= 1
    ids[at] = j
    similarity[at] = value
    return float(similarity[-1])
