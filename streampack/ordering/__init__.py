"""Ordering, pure: which documents of a window follow one another; numpy and numba only.

faiss is used for large windows, where it is installed.
"""

from streampack.ordering.baselines import ClusterOrder, NeighbourOrder, RandomOrder
from streampack.ordering.embedding import Embedder, TextEmbedder, TokenEmbedder
from streampack.ordering.hashing import HashedNgrams
from streampack.ordering.neighbours import Neighbours, find_neighbours
from streampack.ordering.order import DocumentOrder, SimilarityOrder
from streampack.ordering.traversal import walk

__all__ = [
    "ClusterOrder",
    "DocumentOrder",
    "Embedder",
    "HashedNgrams",
    "NeighbourOrder",
    "Neighbours",
    "RandomOrder",
    "SimilarityOrder",
    "TextEmbedder",
    "TokenEmbedder",
    "find_neighbours",
    "walk",
]
