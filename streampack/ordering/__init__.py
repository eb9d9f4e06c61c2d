"""Ordering: arranges the documents of a window by similarity; pure, numpy and numba only.

It sees documents and their vectors, no rows or lanes. faiss is used for large windows, if it is
installed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
