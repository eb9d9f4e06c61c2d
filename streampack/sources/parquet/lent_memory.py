"""Arrays whose memory is used again once nobody holds them, so that it is not faulted in anew.

An array of some megabytes that goes back to the system and comes again is faulted in page by page,
which takes as long as filling it. What is kept here for the next is bounded; the rest goes back.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["lent"]

MOST_KEPT = 4
MOST_KEPT_BYTES = 4 << 20  # of each

_free: deque[NDArray[np.uint8]] = deque(maxlen=MOST_KEPT)  # whose methods are atomic


def lent(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """(count,) of `dtype`, not initialised; its memory is lent until no view of it is left."""
    size = count * dtype.itemsize
    block = None
    for _ in range(len(_free)):
        try:
            found = _free.popleft()
        except IndexError:  # another thread was faster
            break
        if found.nbytes >= size:
            block = found
            break
        _free.append(found)
    if block is None:
        block = np.empty(size, dtype=np.uint8)
    # A view through a buffer is an object of its own, which every view of it keeps alive.
    array: NDArray[Any] = np.frombuffer(memoryview(block[:size]), dtype=dtype)  # type: ignore[arg-type]
    if block.nbytes <= MOST_KEPT_BYTES:
        weakref.finalize(array, _free.append, block).atexit = False
    return array
