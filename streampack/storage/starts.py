"""Starts of files, or small files whole, read with one request each and not cached."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from streampack.errors import StorageError
from streampack.metrics import fetched
from streampack.storage.ahead import Hint
from streampack.storage.file_info import FileInfo, split_url
from streampack.storage.ranges import fetch_start
from streampack.storage.storage import Storage


def read_start(storage: Storage, url: str, most_bytes: int | None = None) -> bytes:
    """Read the first bytes of a remote file, or all of it; fewer at its end.

    Raises:
        StateError: the file was replaced since this process read it.
        StorageError: the bytes could not be read, after all retries.
    """
    if url not in storage.remote.looked_up:
        filesystem, pace = storage.remote.filesystem(split_url(url)[0] or ""), storage.remote.pace
        try:
            part = storage._attempt(
                "Reading", url, lambda: fetch_start(filesystem, url, most_bytes, pace)
            )
        except StorageError as error:
            if error.failure != "other":  # as for a range of an empty file
                raise
        else:
            if part.size is not None:
                storage.remote.remember(FileInfo(url, part.size, part.version))
            fetched.append(len(part.data))
            return part.data
    size = storage.size(url)
    return storage.read_range(url, 0, size if most_bytes is None else min(most_bytes, size))


class Pending:
    """Bytes that are read once, by a thread that reads ahead or by the first that needs them.

    Args:
        read: returns the bytes.
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._begun = threading.Lock()  # never released
        self._bytes: Future[bytes] = Future()

    @classmethod
    def start(cls, storage: Storage, url: str, most_bytes: int | None = None) -> Pending:
        """Let a thread begin with `read_start`."""
        pending = cls(lambda: read_start(storage, url, most_bytes))
        if storage.read_ahead_bytes:
            hint = Hint(lambda *_: pending.fetch(), FileInfo(url, 0), 0, 0)
            storage.remote.fetcher.ahead.add_hint(hint)
        return pending

    def fetch(self) -> None:
        """Read the bytes, unless that has begun."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._bytes.set_result(self._read())
        except BaseException as error:  # raised by `result`
            self._bytes.set_exception(error)

    def result(self) -> bytes:
        """Return the bytes, once they are there; raise the error of reading them."""
        self.fetch()
        return self._bytes.result()

    @property
    def num_bytes(self) -> int:
        """Bytes that are held; 0 before they are there."""
        done = self._bytes.done() and self._bytes.exception() is None
        return len(self._bytes.result()) if done else 0
