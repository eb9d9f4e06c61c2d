"""Clean-up that a second Ctrl-C does not break off."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AGAIN_S = 0.05  # after the clean-up, when the loop has been left


@contextmanager
def whole_clean_up() -> Iterator[None]:
    """Let the block end before the handler of a Ctrl-C runs, which may raise.

    The signal is sent again a moment later. At once it would be raised while the loop's generator
    is closed, where Python prints and forgets it. A program that has ended by then needs none.
    """
    came: list[int] = []
    before: Any = None
    if threading.current_thread() is threading.main_thread():  # no other one is interrupted
        before = signal.getsignal(signal.SIGINT)
    if callable(before):
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        if callable(before):
            signal.signal(signal.SIGINT, before)
        if came:
            again = threading.Timer(AGAIN_S, _send_again)
            again.daemon = True
            again.start()


def _send_again() -> None:
    if threading.main_thread().is_alive():
        os.kill(os.getpid(), signal.SIGINT)
