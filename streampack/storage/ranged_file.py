"""A remote file, read by range, block by block, through the cache of the host (`blocks`).

A missing block is fetched with the blocks that are certain to be read next. A forward reader
declares the byte up to which it reads. Once it has missed a block, blocks are fetched ahead of it
(`ahead`).
"""

from __future__ import annotations

import io
import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.file_info import FileInfo
from streampack.storage.files import Forward, Order, StoredFile
from streampack.storage.read_ahead import MOST_BLOCKS

if TYPE_CHECKING:
    from streampack.storage.fetching import Fetcher
    from streampack.storage.read_ahead import Reader

_KEPT_BLOCKS = 4  # mapped blocks kept behind the current one


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
        self.closed = False
        self.retries: int | None = None  # the default
        self.forwards: list[Forwards] = []
        self._fetcher = fetcher
        self._forwards = Forwards(self, fetcher)

    def close(self) -> None:
        """Fetch nothing more ahead; ranges can still be read."""
        self.closed = True
        for forwards in self.forwards:
            forwards.close()

    def array(self, start: int, stop: int, until: int = 0) -> NDArray[np.uint8]:
        stop = min(stop, self.num_bytes)
        first, end = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        if end - first == 1:
            view = self._forwards.block(first, end, self._blocks(until))
            return np.frombuffer(view, dtype=np.uint8)[start % BLOCK_BYTES :][: stop - start]
        data = np.empty(max(stop - start, 0), dtype=np.uint8)
        order = self._blocks(max(until, stop))
        for number in range(first, end):
            at = number * BLOCK_BYTES
            view = self._forwards.block(number, end, order)
            low, high = max(start - at, 0), min(stop - at, len(view))
            data[at + low - start : at + high - start] = np.frombuffer(view[low:high], np.uint8)
        data.flags.writeable = False
        return data

    def _stream(self, until: int | None, begin: int) -> IO[bytes]:
        blocks = self._blocks(self.num_bytes if until is None else until)[begin // BLOCK_BYTES :]
        return self.ordered_stream(lambda _: (0, blocks))

    def ordered_stream(self, order: Order) -> IO[bytes]:
        """Open the file for several readers in turns, each reading forwards."""
        return io.BufferedReader(_Stream(self, self._fetcher, order), BLOCK_BYTES)

    def _blocks(self, until: int) -> range:
        return range(-(-min(until, self.num_bytes) // BLOCK_BYTES))

    def block_bytes(self, number: int) -> int:
        """Return the size of a block in bytes."""
        return min(BLOCK_BYTES, self.num_bytes - number * BLOCK_BYTES)


class Forwards:
    """Blocks of a file that are read in order, with blocks fetched ahead after the first miss."""

    def __init__(self, file: RangedFile, fetcher: Callable[[], Fetcher]) -> None:
        self._file, self._fetcher = file, fetcher
        self._views: dict[int, memoryview] = {}
        self._reader: Reader | None = None
        self._found = 0  # blocks read before the first miss
        file.forwards.append(self)

    def close(self) -> None:
        """Fetch nothing more ahead, and keep no block mapped."""
        self._views = {}
        if self._reader is not None:
            self._fetcher().ahead.drop(self._reader)
            self._reader = None

    def block(self, number: int, end: int, order: Sequence[int]) -> memoryview:
        """Return block `number`; the blocks before `end` are needed next.

        Args:
            number, end: indices of blocks.
            order: sorted indices of the blocks that are read, as far as they are known.
        """
        view = self._views.pop(number, None)
        if view is None:
            view = self._fetcher().kept(self._file, number)
            self._found += 1
            if view is None or self._reader is not None or self._misses(number, order):
                view = self._moved(view, number, end, order)
        self._views = {**dict([*self._views.items()][1 - _KEPT_BLOCKS :]), number: view}
        return view

    def _misses(self, number: int, order: Sequence[int]) -> bool:
        """Return True if the block is missing that is read last of the next ones."""
        at = bisect_right(order, number)
        soon = order[at : at + MOST_BLOCKS]
        return bool(soon) and not self._fetcher().cache.has(self._file.key, soon[-1])

    def _moved(
        self, view: memoryview | None, number: int, end: int, order: Sequence[int]
    ) -> memoryview:
        """Return a block, fetched if it is missing, with the blocks that follow it in the order."""
        ahead = self._fetcher().ahead
        if self._reader is None or self._reader.ahead is not ahead:  # the latter in a fork
            self._reader = ahead.reader(self._file, self._found - 1)
        at = fetched = bisect_right(order, number)
        waited_s = 0.0
        if view is None:
            stop, most = number + 1, number + ahead.request_blocks(self._reader)
            while stop < most and fetched < len(order) and order[fetched] == stop:
                fetched, stop = fetched + 1, stop + 1
            began = time.monotonic()
            view = self._fetcher().fetched(self._file, number, max(end, stop))
            waited_s = time.monotonic() - began
        if not self._file.closed:
            ahead.moved(self._reader, order, at, fetched, waited_s)
        return view


class _Stream(Forward):
    """A remote file as a raw stream."""

    def __init__(self, file: RangedFile, fetcher: Callable[[], Fetcher], order: Order) -> None:
        self._file, self._fetcher = file, fetcher
        self._order = order
        self._forwards: dict[Hashable, Forwards] = {}
        self.num_bytes = file.num_bytes

    def readinto(self, buffer: Any) -> int:
        number, inside = divmod(self._at, BLOCK_BYTES)
        size = min(len(buffer), self._file.num_bytes - self._at)
        if size <= 0:
            return 0
        end = -(-(self._at + size) // BLOCK_BYTES) if size > BLOCK_BYTES else number + 1
        which, order = self._order(self._at)
        if which not in self._forwards:
            self._forwards[which] = Forwards(self._file, self._fetcher)
        view = self._forwards[which].block(number, end, order)[inside : inside + size]
        buffer[: len(view)] = view
        self._at += len(view)
        return len(view)
