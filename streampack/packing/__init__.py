"""Packing, pure: document lengths in, plans out; numpy and numba only.

Knows lengths, rows and what a window asks for; it does not know tokens, sources or lanes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
