"""Baselines for similarity order: random order, documents with their neighbours, clusters.

All of them are `DocumentOrder`s, so they run online as well. `NeighbourOrder` and `ClusterOrder`
drop near-duplicates as `SimilarityOrder` does; `RandomOrder` embeds nothing and drops nothing.

Source: the baselines of "In-Context Pretraining: Language Modeling Beyond Document Boundaries".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.ordering.order import Ordered, SimilarityOrder, ordered, require_counts
from streampack.packing.rng import derive_seed, permutation

__all__ = ["ClusterOrder", "NeighbourOrder", "RandomOrder"]

ITERATIONS = 10


@dataclass(frozen=True, kw_only=True)
class RandomOrder:
    """Every document once, in seeded random order.

    Args:
        order_window_documents: documents shuffled together.
    """

    order_window_documents: int = 8192

    exact: ClassVar[bool] = True
    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_counts(self, "order_window_documents")

    def order(
        self, documents: Documents, *, seed: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A permutation (N,) int64 by the seed; nothing is dropped."""
        return permutation(len(documents), seed), np.zeros(0, dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        """Kind, parameters and algorithm revision."""
        return {
            "kind": type(self).__name__,
            "revision": self.revision,
            "order_window_documents": self.order_window_documents,
        }


@dataclass(frozen=True, kw_only=True)
class NeighbourOrder(SimilarityOrder):
    """Each document followed by its k nearest neighbours, so that documents repeat.

    The documents come in seeded random order. About k + 1 times as many go out as came in, popular
    ones more often than others; the paper criticizes this.
    """

    def order(self, documents: Documents, *, seed: int = 0) -> Ordered:
        """Groups of a document and its neighbours (at most M * (k + 1),), and the dropped ones."""
        found = self.neighbours(documents, self.embed(documents))
        first = permutation(len(found.kept), seed)
        groups = np.concatenate([first[:, None], found.ids[first]], axis=1).ravel()
        return ordered(found, groups[groups >= 0])


@dataclass(frozen=True, kw_only=True)
class ClusterOrder(SimilarityOrder):
    """Documents cluster by cluster, in random order inside each.

    Spherical k-means in float64 from seeded documents, ten iterations; the sums differ in their
    last bits between machines, so a state stores the order.

    Args:
        documents_per_cluster: on average.
    """

    documents_per_cluster: int = 64

    exact = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "documents_per_cluster")

    def order(self, documents: Documents, *, seed: int = 0) -> Ordered:
        """The kept documents (M,) by cluster, clusters in no particular order, and the dropped."""
        vectors = self.embed(documents)
        found = self.neighbours(documents, vectors)
        count = len(found.kept)
        shuffled = permutation(count, derive_seed(seed, 1))
        clusters = max(round(count / self.documents_per_cluster), 1)
        belongs = _cluster(vectors[found.kept], clusters, seed)
        by_cluster = shuffled[np.argsort(belongs[shuffled], kind="stable")]
        return ordered(found, by_cluster)

    def describe(self) -> dict[str, Any]:
        """Kind, parameters and algorithm revision."""
        return {**super().describe(), "documents_per_cluster": self.documents_per_cluster}


def _cluster(vectors: NDArray[np.float32], clusters: int, seed: int) -> NDArray[np.int64]:
    """(M,) int64 cluster of each vector."""
    unit = vectors.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    centres = unit[permutation(len(unit), seed)[:clusters]]
    belongs = np.zeros(len(unit), dtype=np.int64)
    for _ in range(ITERATIONS if len(unit) else 0):
        belongs = np.argmax(unit @ centres.T, axis=1)
        order = np.argsort(belongs, kind="stable")
        filled, first = np.unique(belongs[order], return_index=True)
        sums = np.add.reduceat(unit[order], first, axis=0)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centres[filled] = sums / np.maximum(norms, np.finfo(np.float64).tiny)
    return belongs
