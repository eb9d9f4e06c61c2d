"""Working memory of planning, kept from plan to plan so that it is page-faulted in only once.

Page faults would take two thirds of the time of a plan of 10,000 documents. Each thread has its own
memory. It is not initialised, is used within one kernel call, and is never part of a result. It
grows as needed; what a plan needs beyond `MOST_KEPT_BYTES` is allocated for that plan alone.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

MOST_KEPT_BYTES = 8 << 20  # a quarter of a million pieces; more is rare, and then faults are few


class _Kept(threading.local):
    words: NDArray[np.int64] = np.empty(0, dtype=np.int64)


_kept = _Kept()


def scratch_words(count: int) -> NDArray[np.int64]:
    """(count or more,) int64 memory to use, valid until this thread asks again."""
    words = _kept.words
    if len(words) < count:
        words = np.empty(count + count // 4, dtype=np.int64)
        if words.nbytes <= MOST_KEPT_BYTES:
            _kept.words = words
    return words
