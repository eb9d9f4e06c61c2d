"""Blocks that a server was asked for, and the end of reading ahead."""

from __future__ import annotations

import threading
import time

from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.growing import THREAD_NAME
from streampack.storage.plans import Plans
from tests.support.servers import HTTPServer

WAIT_S = 60.0


def fetched_blocks(http: HTTPServer) -> list[int]:
    """Indices of the blocks that were asked for, sorted."""
    found: list[int] = []
    for request in http.requests:
        if request.range:
            first, last = map(int, request.range.removeprefix("bytes=").split("-"))
            found += range(first // BLOCK_BYTES, last // BLOCK_BYTES + 1)
    return sorted(found)


def settle() -> None:
    """Wait until nothing is fetched ahead, and no content is made."""
    until_s = time.monotonic() + WAIT_S
    while any(is_at_work(thread) for thread in threading.enumerate()):
        assert time.monotonic() < until_s
        time.sleep(0.001)


def is_at_work(thread: threading.Thread) -> bool:
    """Return True for a thread that makes content, or fetches ahead and does not wait for work."""
    work = getattr(thread, "_target", None)
    if thread.name != "streampack-read-ahead" or work is None:
        return thread.name == THREAD_NAME
    plans: Plans = work.__self__
    with plans._lock:
        return plans._idle < plans._threads or plans._has_work()
