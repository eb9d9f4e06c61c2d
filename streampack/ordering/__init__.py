"""Ordering: arranges the documents of a window by similarity; pure, numpy and numba only.

It sees documents and their vectors, no rows or lanes. faiss is used for large windows, if it is
installed.
"""

from streampack._lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
