"""Collectives that were started and not waited for: what becomes of them when the process exits.

A question to the other ranks travels while the loop computes, so a loop that is left has one under
way. Python ends threads that need it while it shuts down, and one of gloo's that drops a
tensor then ends the whole process by a signal. So at exit they are waited for, for a while: ranks
that left their loops after the same step have all asked the same. And the last ones are dropped by
nobody.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Any

EXIT_WAIT_S = 5.0  # for all together, where another rank asks nothing more and does not exit either


#: Started in this process (by its id), in order, each with its tensor. The last ones are kept
#: though they are complete, so that the thread that completed one never drops it last.
_kept: deque[tuple[int, Any, Any]] = deque()


KEPT = 16


def keep(work: Any, tensor: Any) -> None:
    """Keep a collective that was just started, and what it writes to, beyond its completion."""
    _kept.append((os.getpid(), work, tensor))
    while len(_kept) > KEPT and _kept[0][1].is_completed():
        _kept.popleft()


@atexit.register
def _wait() -> None:
    deadline = time.monotonic() + EXIT_WAIT_S
    for process, work, _ in _kept:
        left_s = deadline - time.monotonic()
        if process == os.getpid() and left_s > 0:  # a child that was forked has no such threads
            with suppress(RuntimeError):  # another rank died, or asks nothing
                work.wait(timedelta(seconds=left_s))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # not even the interpreter's end drops them
