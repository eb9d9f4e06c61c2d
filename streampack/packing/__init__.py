"""Packing algorithms: pure functions from document lengths to plans, in numpy and numba only.

They see lengths, rows and a window's requests, and no tokens, sources or lanes.
"""

from streampack._lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
