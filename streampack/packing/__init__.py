"""Packing algorithms: pure functions from document lengths to plans, in numpy and numba only.

They see lengths, rows and a window's requests, and no tokens, sources or lanes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
