"""Starts of files, or small files whole, that a thread reads ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from streampack.per_process import PerProcess
from streampack.storage.storage import Storage


class Pending:
    """Bytes that are read once, by a thread that reads ahead or by the first that needs them.

    Args:
        read: returns the bytes.
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        # A fork has no thread that would go on reading, so it reads anew.
        self._begun = PerProcess(threading.Lock)  # never released
        self._bytes: PerProcess[Future[bytes]] = PerProcess(Future)

    @classmethod
    def start(cls, storage: Storage, url: str, most_bytes: int | None = None) -> Pending:
        """Let a thread begin with `RemoteFiles.read_start`."""
        pending = cls(lambda: storage.remote.read_start(url, most_bytes))
        if storage.read_ahead_bytes:
            storage.remote.fetcher.plans.soon(pending.fetch)
        return pending

    def fetch(self) -> None:
        """Read the bytes, unless that has begun."""
        if not self._begun().acquire(blocking=False):
            return
        try:
            self._bytes().set_result(self._read())
        except BaseException as error:  # raised by `result`
            self._bytes().set_exception(error)

    def result(self) -> bytes:
        """Return the bytes, once they are there; raise the error of reading them."""
        self.fetch()
        return self._bytes().result()

    @property
    def num_bytes(self) -> int:
        """Bytes that are held; 0 before they are there."""
        done = self._bytes().done() and self._bytes().exception() is None
        return len(self._bytes().result()) if done else 0
