"""Ordering, pure: which documents of a window follow one another; numpy and numba only.

Knows documents and their vectors; it does not know rows or lanes. faiss is used for large windows,
if it is installed.
"""

from streampack.ordering.bm25 import BM25
from streampack.ordering.embedding import Embedder, TextEmbedder, TokenEmbedder
from streampack.ordering.hashing import HashedNgrams
from streampack.ordering.neighbours import Neighbours, find_neighbours
from streampack.ordering.order import DocumentOrder, GroupBy, Ordered, SimilarityOrder
from streampack.ordering.traversal import Limit, walk

__all__ = [
    "BM25",
    "DocumentOrder",
    "Embedder",
    "GroupBy",
    "HashedNgrams",
    "Limit",
    "Neighbours",
    "Ordered",
    "SimilarityOrder",
    "TextEmbedder",
    "TokenEmbedder",
    "find_neighbours",
    "walk",
]
