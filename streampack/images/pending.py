"""Starts of files, or small files whole, that a thread reads ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from streampack.per_process import PerProcess
from streampack.storage.storage import Storage
from streampack.threads import awaited

T = TypeVar("T")


class Pending(Generic[T]):
    """Bytes that are read once, by a thread that reads ahead or by the first that needs them.

    Args:
        read: returns the bytes, or a value that is read from them.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        # A fork has no thread that would go on reading, so it reads anew.
        self._begun = PerProcess(threading.Lock)  # never released
        self._read_once: PerProcess[Future[T]] = PerProcess(Future)

    @staticmethod
    def start(storage: Storage, url: str, most_bytes: int | None = None) -> Pending[bytes]:
        """Let a thread begin with `RemoteFiles.read_start`."""
        return Pending(lambda: storage.remote.read_start(url, most_bytes)).soon(storage)

    def soon(self, storage: Storage) -> Pending[T]:
        """Let a thread of a storage begin, unless it reads nothing ahead."""
        if storage.read_ahead_bytes:
            storage.remote.fetcher.plans.soon(self.fetch)
        return self

    def fetch(self) -> None:
        """Read the bytes, unless that has begun."""
        if not self._begun().acquire(blocking=False):
            return
        try:
            self._read_once().set_result(self._read())
        except BaseException as error:  # raised by `result`
            self._read_once().set_exception(error)

    def result(self) -> T:
        """Return the bytes, once they are there; raise the error of reading them."""
        self.fetch()
        return awaited(self._read_once())

    @property
    def num_bytes(self) -> int:
        """Bytes that are held; 0 before they are there."""
        done = self._read_once().done() and self._read_once().exception() is None
        held = self._read_once().result() if done else None
        return len(held) if isinstance(held, bytes) else 0
