"""Attempts to read files, with retries after failures that may pass.

An attempt that fails is followed by a random time of sleep below a doubling bound (so that a
thousand ranks do not retry together), or longer if the server asks for it. An error is raised at
once if another attempt cannot help: a file is missing or forbidden, the disk is full.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from streampack.errors import StreampackError

T = TypeVar("T")


def with_retries(action: Callable[[], T], *, doing: str, url: str, retries: int | None) -> T:
    """Return the result of `action`, with up to `retries` further attempts.

    Args:
        action: makes a whole attempt, from the beginning.
        doing: name of the action for messages: "Reading", "Downloading".
        url: URL that the action works on.
        retries: attempts after the first; None repeats them for some minutes.

    Raises:
        StorageError: every attempt failed, or one failed permanently. Its cause is the error of the
            last attempt.
    """
    attempt, began_s = 0, time.monotonic()
    while True:
        attempt += 1
        try:
            return action()
        except StreampackError:
            raise
        except Exception as error:
            from streampack.remote.failures import wait_or_raise

            wait_or_raise(error, attempt, began_s, doing=doing, url=url, retries=retries)
