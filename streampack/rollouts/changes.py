"""Changes: a condition variable for threads and for coroutines of any event loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from contextlib import suppress
from types import TracebackType

from streampack.threads import LOOK_S


class Changes:
    """A lock, and notice of changes to the guarded data.

    Use it as ``with changes:``; `wait`, `subscribe` and `notify` need the lock.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._futures: set[asyncio.Future[None]] = set()

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._condition.release()

    def wait(self, until: float) -> None:
        """Wait for a change, until a time of `time.monotonic` or less; the lock is free then."""
        self._condition.wait(min(max(until - time.monotonic(), 0), LOOK_S))

    def subscribe(self) -> asyncio.Future[None]:
        """Return a future that the next change completes, for `wait_for`."""
        future = asyncio.get_running_loop().create_future()
        self._futures.add(future)
        return future

    async def wait_for(self, future: asyncio.Future[None], until: float) -> None:
        """Wait for the future of `subscribe`, or until a time, without the lock."""
        left_s = until - time.monotonic()
        try:
            await asyncio.wait({future}, timeout=None if left_s == math.inf else max(left_s, 0))
        finally:
            with self:
                self._futures.discard(future)

    def notify(self) -> None:
        """Wake everyone that waits."""
        self._condition.notify_all()
        for future in self._futures:
            with suppress(RuntimeError):  # its loop is closed
                future.get_loop().call_soon_threadsafe(_complete, future)
        self._futures.clear()


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
