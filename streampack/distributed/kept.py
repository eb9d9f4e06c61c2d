"""Collectives that are pending when the process exits.

Collectives run while the loop computes, so a loop that is left early has one pending. Python ends
threads that call into it while it shuts down, and a gloo thread that releases a tensor at that time
kills the process by a signal. So at exit the process waits for pending collectives, for a limited
time: ranks that left their loops after the same step have all started the same ones. The last
references are never released.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Any

from streampack.at_exit import at_exit
from streampack.per_process import PerProcess

EXIT_WAIT_S = 5.0  # total wait for ranks that neither join a collective nor exit
KEPT = 16


#: Collectives started in this process, in order, each with its tensors; None for a released one.
#: The last ones are kept after completion, so that gloo's thread never releases the last reference.
_kept: PerProcess[deque[tuple[Any, Any]]] = PerProcess(deque)


def keep(work: Any, tensors: Any) -> None:
    """Keep a collective that was just started, and its tensors, beyond its completion."""
    kept = _kept()
    kept.append((work, tensors))
    while len(kept) > KEPT and (kept[0][0] is None or kept[0][0].is_completed()):
        kept.popleft()


def release(work: Any, tensors: Any) -> None:
    """Keep the tensors of a completed collective alone: it holds its group's connections."""
    kept = _kept()
    for number, (held, _) in enumerate(kept):
        if held is work:
            kept[number] = None, tensors


def _wait() -> None:
    deadline = time.monotonic() + EXIT_WAIT_S
    for work, _ in _kept():
        left_s = deadline - time.monotonic()
        if work is not None and left_s > 0:
            with suppress(RuntimeError):  # another rank died, or joins no collective
                work.wait(timedelta(seconds=left_s))
    # An extra reference, so that the list outlives the interpreter.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept()))


at_exit("collectives", _wait)
