"""A remote file, read by range, block by block, through the cache of the host (`blocks`)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.file_info import FileInfo
from streampack.keep_last import KeepLast
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.files import Forward, StoredFile

if TYPE_CHECKING:
    from streampack.storage.fetching import Fetcher

_KEPT_BLOCKS = 8  # mapped blocks of a file, as of columns that are read at the same time


class RangedFile(StoredFile):
    """A remote file.

    Args:
        listed: URL, size and version of the file.
        fetcher: returns the fetcher of the process that calls it.
    """

    mapped = False

    def __init__(self, listed: FileInfo, fetcher: Callable[[], Fetcher]) -> None:
        self.listed: FileInfo = listed
        self.num_bytes = listed.num_bytes
        self.version = (listed.path, listed.num_bytes, listed.version)
        self.key = listed.key
        self._fetcher = fetcher
        self._views: KeepLast[int, memoryview] = KeepLast(_KEPT_BLOCKS)

    def plan(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._fetcher().plans.plan(id(self), ((self, start, stop) for start, stop in ranges))

    def close(self) -> None:
        """Fetch nothing more by a plan, and keep no block mapped; ranges can still be read."""
        self._fetcher().plans.drop(id(self))
        self._views = KeepLast(_KEPT_BLOCKS)

    def array(self, start: int, stop: int) -> NDArray[np.uint8]:
        stop = min(stop, self.num_bytes)
        if start >= stop:
            return np.zeros(0, dtype=np.uint8)
        first, end = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        if end - first == 1:
            view = self.block(first, end)
            return np.frombuffer(view, dtype=np.uint8)[start % BLOCK_BYTES :][: stop - start]
        data = np.empty(stop - start, dtype=np.uint8)
        for number in range(first, end):
            at = number * BLOCK_BYTES
            view = self.block(number, end)
            low, high = max(start - at, 0), min(stop - at, len(view))
            data[at + low - start : at + high - start] = np.frombuffer(view[low:high], np.uint8)
        data.flags.writeable = False
        return data

    def _stream(self) -> IO[bytes]:
        return io.BufferedReader(_Stream(self), BLOCK_BYTES)

    def block(self, number: int, end: int) -> memoryview:
        """Return a block for a reader that needs all up to `end`."""
        return self._views.keep(number, lambda: self._fetcher().block(self, number, end))

    def block_bytes(self, number: int) -> int:
        """Return the size of a block in bytes."""
        return min(BLOCK_BYTES, self.num_bytes - number * BLOCK_BYTES)


class _Stream(Forward):
    """A remote file as a raw stream."""

    def __init__(self, file: RangedFile) -> None:
        self._file = file
        self.num_bytes = file.num_bytes

    def readinto(self, buffer: Any) -> int:
        number, inside = divmod(self._at, BLOCK_BYTES)
        size = min(len(buffer), self._file.num_bytes - self._at)
        if size <= 0:
            return 0
        end = -(-(self._at + size) // BLOCK_BYTES) if size > BLOCK_BYTES else number + 1
        view = self._file.block(number, end)[inside : inside + size]
        buffer[: len(view)] = view
        self._at += len(view)
        return len(view)
