"""The interface of a stored file for formats: size, ranges of bytes, and forward streams.

A local file is mapped; a remote one is a `RangedFile`.
"""

from __future__ import annotations

import errno
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import StorageError
from streampack.file_info import replaced
from streampack.storage.mapping import map_file

if TYPE_CHECKING:
    from streampack.file_info import FileInfo

#: Smaller files and row groups are decompressed each time, because they are rarely cut.
LEAST_BYTES = 1 << 20
_BUFFER = 1 << 20


class DamagedError(ValueError):
    """Raised for stored data that is corrupt or of the wrong size; the message has details."""


def is_of_system(error: BaseException) -> bool:
    """Return True if the operating system failed, as with a broken disk, not a file's content."""
    return isinstance(error, OSError) and error.errno is not None


class StoredFile(ABC):
    """An open file.

    Attributes:
        num_bytes: size in bytes.
        version: path or URL, and an identifier of the version.
        listed: listing of a remote file.
        mapped: True if any range is available without cost.
        needed_again: True while bytes are read that another part needs; they stay in a full cache.
    """

    num_bytes: int
    version: tuple[Any, ...]
    listed: FileInfo | None = None
    mapped = True
    needed_again = False

    def plan(self, ranges: Iterable[tuple[int, int]]) -> None:  # noqa: B027
        """Declare the bytes [start, stop) that will be read, in this order, to be fetched ahead."""

    @abstractmethod
    def array(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return read-only bytes [start, stop) as (stop - start,) uint8, fewer at the file's end.

        Raises:
            StateError: the file was replaced.
            StorageError: the bytes could not be fetched, after all retries.
        """

    def stream(self, begin: int = 0) -> IO[bytes]:
        """Open the file for forward reading from byte `begin` on. Raises the errors of `array`."""
        stream = self._stream()
        stream.seek(begin)
        return stream

    def _stream(self) -> IO[bytes]:
        return io.BytesIO(self.read(0, self.num_bytes))

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes of a range, fewer at the end of the file."""
        return self.array(start, stop).tobytes()


class LocalFile(StoredFile):
    """A local file, mapped at its first use.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        status = os.stat(path)
        self.path = path
        self.num_bytes = status.st_size
        self.version = (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
        self._data: NDArray[np.uint8] | None = None

    def array(self, start: int, stop: int) -> NDArray[np.uint8]:
        if self._data is None:
            try:
                self._data = map_file(self.path)
            except OSError as error:
                raise _not_mapped(self.path, error) from error
        return self._data[start:stop]

    def _stream(self) -> IO[bytes]:
        return io.BufferedReader(_LocalStream(self), _BUFFER)


def _not_mapped(path: Path, error: OSError) -> OSError:
    if error.errno not in (errno.ENOMEM, errno.ENODEV):
        return error
    return StorageError(
        f"{path} cannot be mapped into memory ({error.strerror}).",
        "Raise vm.max_map_count, or lower open_shards of ReadOptions or the number of lanes."
        if error.errno == errno.ENOMEM
        else "Copy it to a file system that maps files.",
        path=str(path),
    )


class Forward(io.RawIOBase):
    """The position of a raw stream over `num_bytes`."""

    num_bytes: int
    _at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.num_bytes}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at


class _LocalStream(Forward):
    """A local file as a raw stream; it holds no descriptor between reads."""

    def __init__(self, file: LocalFile) -> None:
        self._path, self._inode = file.path, file.version[1]
        self.num_bytes = file.num_bytes

    def readinto(self, buffer: Any) -> int:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if (inode := os.fstat(fd).st_ino) != self._inode:
                raise replaced(str(self._path), f"inode {self._inode}", f"inode {inode}")
            os.lseek(fd, self._at, os.SEEK_SET)
            size = os.readv(fd, [buffer])
        finally:
            os.close(fd)
        self._at += size
        return size


class MemoryFile(StoredFile):
    """Bytes in memory, or mapped; `data` is a (B,) uint8 array of them."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.num_bytes = len(data)
        self.version = ("", id(self))
        self._data = data

    def array(self, start: int, stop: int) -> NDArray[np.uint8]:
        return self._data[start:stop]
