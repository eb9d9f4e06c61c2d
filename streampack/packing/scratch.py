"""Working memory of planning, kept from plan to plan so that it is not page-faulted in anew.

Faults would take two thirds of the time of a plan of 10,000 documents. Every thread has its own
memory: what is handed out is used within one kernel call, is not initialised, and is never part of
a result. It grows as needed; plans that want more than `MOST_KEPT_BYTES` get memory of their own.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

__all__ = ["scratch_words"]

MOST_KEPT_BYTES = 8 << 20  # a quarter of a million pieces; more is rare, and then faults are few


class _Kept(threading.local):
    words: NDArray[np.int64] = np.empty(0, dtype=np.int64)


_kept = _Kept()


def scratch_words(count: int) -> NDArray[np.int64]:
    """(count or more,) int64 to write over, good until this thread asks again."""
    words = _kept.words
    if len(words) < count:
        words = np.empty(count + count // 4, dtype=np.int64)
        if words.nbytes <= MOST_KEPT_BYTES:
            _kept.words = words
    return words
