"""Limits on the time that a request for a remote file takes."""

from __future__ import annotations

import asyncio
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any

from streampack.remote.failures import TooSlowError
from streampack.threads import LOOK_S, end_with_process, pulse


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits on the slowness of a server.

    Attributes:
        timeout_s: seconds after which an attempt fails if nothing arrives, or less than
            `min_bytes_per_s`.
        min_bytes_per_s: minimum rate; 0 is no limit.
    """

    timeout_s: float
    min_bytes_per_s: float

    def too_slow(self, num_bytes: int | None, seconds: float) -> TooSlowError:
        """Return the error for an answer with only `num_bytes` bytes after `seconds`."""
        came = "the answer was not complete" if num_bytes is None else f"{num_bytes} bytes came"
        return TooSlowError(
            f"{came} after {seconds:.3g} s; min_bytes_per_s is {self.min_bytes_per_s:g}"
        )

    def call(self, filesystem: Any, method: str, *args: Any, num_bytes: int, **options: Any) -> Any:
        """Call a method of a file system, and give up after the time allowed for `num_bytes`.

        Without asyncio, the file system has limits of its own.
        """
        if not filesystem.async_impl:
            return getattr(filesystem, method)(*args, **options)
        rate = self.min_bytes_per_s
        limit_s = self.timeout_s + num_bytes / rate if rate else None

        async def limited() -> Any:
            task = asyncio.ensure_future(getattr(filesystem, "_" + method)(*args, **options))
            try:
                done, _ = await asyncio.wait({task}, timeout=limit_s)
                if not done:
                    raise self.too_slow(None, limit_s or 0)
                return task.result()
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task}, timeout=1)

        answer = asyncio.run_coroutine_threadsafe(limited(), filesystem.loop)
        try:
            while not wait([answer], timeout=LOOK_S).done:
                pulse().beat()  # the request has a limit of its own
                end_with_process()
        finally:
            answer.cancel()  # after an interrupt
        return answer.result()
