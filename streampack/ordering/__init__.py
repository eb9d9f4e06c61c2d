"""Ordering, pure: which documents of a window follow one another; numpy and numba only.

Knows documents and their vectors; it does not know rows or lanes. faiss is used for large windows,
if it is installed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    "bm25": ['BM25'],
    "embedding": ['Embedder', 'TextEmbedder', 'TokenEmbedder'],
    "hashing": ['HashedNgrams'],
    "neighbours": ['Neighbours', 'find_neighbours'],
    "order": ['DocumentOrder', 'GroupBy', 'Ordered', 'SimilarityOrder'],
    "traversal": ['Limit', 'walk'],
})  # fmt: skip
