"""Near-duplicates: candidates by their heads, confirmed on the whole documents.

Steps:
  1. Two documents whose heads have a cosine above the threshold are candidates: a shared licence or
     preamble is enough for that.
  2. Candidates are embedded whole, by hashed n-grams (`hashing`); a document longer than 2**18
     tokens in pieces, whose vectors are added.
  3. The later one is a near-duplicate if the cosine of the whole documents exceeds the same
     threshold.

Whole documents are compared by their tokens whatever embedder proposed them: models read the first
few hundred tokens, and topics that agree are no duplicates.

Cost: candidates are embedded once, and each pair of them takes D multiplications. Nothing else is
embedded whole. Vectors, products and lengths are whole numbers, so the result is exact.

Source: "In-Context Pretraining: Language Modeling Beyond Document Boundaries" removes documents by
the similarity of their embeddings, which are those of heads; step 3 is ours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents.blocks import Documents
from streampack.ordering.hashing import HashedNgrams

PIECE = 1 << 18  # tokens embedded at once: the memory of the hash table grows with them


class Wholes:
    """Vectors of whole documents, made when they are candidates.

    Attributes:
        row: (N,) int64, where a document's vector is; -1 before it is made. Empty if
            candidates count as duplicates without a comparison of the whole documents.
        vectors: (C, D) int32; norms: (C,) float64, their squared lengths.
    """

    def __init__(self, documents: Documents | None, embedder: HashedNgrams | None = None) -> None:
        self._documents = documents
        self._embedder = embedder or HashedNgrams()
        self.row = np.full(0 if documents is None else len(documents), -1, dtype=np.int64)
        self.vectors = np.zeros((0, self._embedder.dimension), dtype=np.int32)
        self.norms = np.zeros(0, dtype=np.float64)

    def embed(self, wanted: NDArray[np.bool_]) -> None:
        """Make the vectors of the documents `wanted` (N,) that have none yet."""
        new = np.flatnonzero(wanted & (self.row < 0)) if len(self.row) else self.row
        if not len(new):
            return
        self.row[new] = len(self.vectors) + np.arange(len(new))
        vectors = self._vectors(new)
        self.vectors = np.concatenate([self.vectors, vectors])
        self.norms = np.concatenate([self.norms, whole_norms(vectors)])

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
    """(N,) squared lengths of the vectors (N, D) of whole documents; 1 for a zero vector."""
    whole = vectors.astype(np.int64)
    norms: NDArray[np.int64] = np.maximum((whole * whole).sum(axis=1), 1)
    return norms.astype(np.float64)


@kernel
def alike(
    i: int,
    j: int,
    row: NDArray[np.int64],
    vectors: NDArray[np.int32],
    norms: NDArray[np.float64],
    threshold: float,
) -> bool:
    """Whether the cosine of the whole documents exceeds the threshold; true of those not made."""
    if len(row) == 0 or row[i] < 0 or row[j] < 0:
        return True
    mine, other = vectors[row[i]], vectors[row[j]]
    product = np.int64(0)
    for d in range(len(mine)):
        product += np.int64(mine[d]) * np.int64(other[d])
    return bool(np.float64(product) / np.sqrt(norms[row[i]] * norms[row[j]]) > threshold)
