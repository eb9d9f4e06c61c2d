"""A stored file as formats see it: its size, bytes of a range, and views that are read forwards.

A local file is mapped. A remote one is read by range, block by block, through the cache of the host
(`blocks`): a block that is not there is fetched, with those that are sure to be read next. Whoever
reads forwards names the byte up to which it will. While it never waits, nothing is fetched ahead;
each time it does, twice as much.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.storage.blocks import BLOCK_BYTES, STRIPE_BLOCKS
from streampack.storage.decompression import map_file

if TYPE_CHECKING:
    from streampack.storage.fetching import Fetcher
    from streampack.storage.remote import FileInfo

_BUFFER = 1 << 20
_KEPT_BLOCKS = 8  # mapped, behind the one that is read
_FIRST_BLOCKS = 4  # fetched at once where more will follow


class StoredFile(ABC):
    """A file that is open.

    Attributes:
        num_bytes: its size.
        version: its path or URL, and what differs between versions of it.
        listed: of a remote one, as it was listed.
        mapped: any range of it is there at no cost.
    """

    num_bytes: int
    version: tuple[Any, ...]
    listed: FileInfo | None = None
    mapped = True

    @abstractmethod
    def array(self, start: int, stop: int, until: int = 0) -> NDArray[np.uint8]:
        """(stop - start,) uint8: bytes of the file, read-only; not more than it has.

        Args:
            start, stop: the range.
            until: reading goes on to this byte, one range after the other.

        Raises:
            StateError: the file was replaced.
            StorageError: the bytes could not be fetched, after all retries.
        """

    @abstractmethod
    def stream(self, until: int | None = None) -> IO[bytes]:
        """The file to be read forwards, from any place on, up to byte `until` or its end.

        It reads on beyond that if it is asked to. Raises what `array` does.
        """

    def read(self, start: int, stop: int) -> bytes:
        """Bytes of a range; not more than there are."""
        return self.array(start, stop).tobytes()


class LocalFile(StoredFile):
    """A file of this machine, mapped when that is first needed.

    Args:
        path: of it.
        listed: the remote file that it is a copy of.
    """

    def __init__(self, path: Path, listed: FileInfo | None = None) -> None:
        status = os.stat(path)
        self.path = path
        self.listed = listed
        self.num_bytes = status.st_size
        self.version = (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
        if listed is not None:
            self.version = (listed.path, listed.num_bytes, listed.version)
        self._data: NDArray[np.uint8] | None = None

    def array(self, start: int, stop: int, until: int = 0) -> NDArray[np.uint8]:
        if self._data is None:
            self._data = map_file(self.path)
        return self._data[start:stop]

    def stream(self, until: int | None = None) -> IO[bytes]:
        return open(self.path, "rb", _BUFFER)


class MemoryFile(StoredFile):
    """Bytes in memory, or mapped; `data` is a (B,) uint8 array of them."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.num_bytes = len(data)
        self.version = ("", id(self))
        self._data = data

    def array(self, start: int, stop: int, until: int = 0) -> NDArray[np.uint8]:
        return self._data[start:stop]

    def stream(self, until: int | None = None) -> IO[bytes]:
        return io.BytesIO(self._data.tobytes())


class RangedFile(StoredFile):
    """A remote file.

    Args:
        listed: its URL, size and version.
        fetcher: of this process.
    """

    mapped = False

    def __init__(self, listed: FileInfo, fetcher: Fetcher) -> None:
        self.listed: FileInfo = listed
        self.num_bytes = listed.num_bytes
        self.version = (listed.path, listed.num_bytes, listed.version)
        self.key = fetcher.key(listed)
        self.closed = False
        self._fetcher = fetcher
        self._forwards = Forwards(self, fetcher)

    def array(self, start: int, stop: int, until: int = 0) -> NDArray[np.uint8]:
        stop = min(stop, self.num_bytes)
        first, end = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        if end - first == 1:
            view = self._forwards.block(first, end, until)
            return np.frombuffer(view, dtype=np.uint8)[start % BLOCK_BYTES :][: stop - start]
        data = np.empty(max(stop - start, 0), dtype=np.uint8)
        for number in range(first, end):
            at = number * BLOCK_BYTES
            view = self._forwards.block(number, end, until)
            low, high = max(start - at, 0), min(stop - at, len(view))
            data[at + low - start : at + high - start] = np.frombuffer(view[low:high], np.uint8)
        data.flags.writeable = False
        return data

    def stream(self, until: int | None = None) -> IO[bytes]:
        return io.BufferedReader(_Stream(self, self._fetcher, until), BLOCK_BYTES)

    def block_bytes(self, number: int) -> int:
        """How many bytes a block has."""
        return min(BLOCK_BYTES, self.num_bytes - number * BLOCK_BYTES)


class Forwards:
    """Blocks of a file, mostly one after the other, and what is fetched ahead of them."""

    def __init__(self, file: RangedFile, fetcher: Fetcher) -> None:
        self._file, self._fetcher = file, fetcher
        self._views: dict[int, memoryview] = {}
        self._ahead = 0  # blocks
        self._asked = 0  # for the blocks before this one

    def block(self, number: int, end: int, until: int) -> memoryview:
        """Block `number`; those before block `end` are needed next, and then to byte `until`."""
        view = self._views.pop(number, None)
        if view is None:
            file, fetcher = self._file, self._fetcher
            last = max(-(-min(until, file.num_bytes) // BLOCK_BYTES), end)
            view = fetcher.kept(file, number)
            if view is None:
                most = fetcher.most_ahead()
                more = min(last, number + max(self._ahead, _FIRST_BLOCKS), number + most)
                view = fetcher.fetched(file, number, max(number + 1, end, more))
                self._ahead = min(max(2 * self._ahead, _FIRST_BLOCKS), most)
            if self._ahead:
                self._ask(number + 1, last)
        self._views = {**dict([*self._views.items()][1 - _KEPT_BLOCKS :]), number: view}
        return view

    def _ask(self, following: int, end: int) -> None:
        """Have blocks fetched ahead, many at a time."""
        if not following <= self._asked <= following + self._ahead:
            self._asked = following  # it begins elsewhere
        low, high = self._asked, min(following + self._ahead, end)
        if high > low and (high == end or 2 * (high - low) >= self._ahead):
            self._asked = high
            while low < high:
                stop = min(low - low % STRIPE_BLOCKS + STRIPE_BLOCKS, high)
                self._fetcher.fetch_ahead(self._file, low, stop)
                low = stop


class _Stream(io.RawIOBase):
    """A remote file as a raw stream."""

    def __init__(self, file: RangedFile, fetcher: Fetcher, until: int | None) -> None:
        self._file = file
        self._until = file.num_bytes if until is None else until
        self._forwards = Forwards(file, fetcher)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.num_bytes}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        number, inside = divmod(self._at, BLOCK_BYTES)
        size = min(len(buffer), self._file.num_bytes - self._at)
        if size <= 0:
            return 0
        end = -(-(self._at + size) // BLOCK_BYTES) if size > BLOCK_BYTES else number + 1
        view = self._forwards.block(number, end, self._until)[inside : inside + size]
        buffer[: len(view)] = view
        self._at += len(view)
        return len(view)
