"""Ordering, pure: which documents of a window follow one another; numpy and numba only.

Knows documents and their vectors; it does not know rows or lanes. faiss is used for large windows,
if it is installed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
