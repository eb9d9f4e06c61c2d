"""The blocks of remote files that a host holds, shared by all of its processes.

A block is `BLOCK_BYTES` of one version of a file, or less at its end. Blocks that one request
fetched are one file, with a checksum of each behind its bytes, which detects damage by a power
failure or a disk. A file never crosses a multiple of `EXTENT_BLOCKS`, so it is among sixteen names.
It is written under another name and renamed into place, so it is complete or absent, and never
changes. Readers map it without a lock: an evicted block stays readable while it is mapped.

Files are spread over folders by version and extent; `room` tells which of them go.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from streampack.errors import StorageError
from streampack.storage.locks import Lock, Patience
from streampack.storage.mapping import mapped
from streampack.storage.room import Room, mark_as_read
from streampack.threads import end_with_process, pulse

BLOCK_BYTES = 256 << 10
#: Blocks between two borders that no request crosses.
EXTENT_BLOCKS = 16

_LOCKED_BLOCKS = 4  # with one lock, so that small requests need not wait for one another
_PAUSE_S = 0.005  # between two looks at a lock of another process

_ALL = -2  # number in the name of the lock on all blocks of a content
#: Opens a file without a new time of its last use; see `mark_as_read`.
_UNSEEN = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOATIME", 0)
_NUMBER = struct.Struct("<I")  # size of the content, and the CRC-32 of each block


def default_cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/streampack``, ``~/.cache/streampack``, or a temporary directory."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "streampack"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return folder
    folder = Path(tempfile.gettempdir()) / f"streampack-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not folder.is_symlink() and folder.is_dir() and status.st_uid == os.getuid():
        return folder
    # Another user made that directory first, so its files must not be trusted.
    return Path(tempfile.mkdtemp(prefix="streampack-"))


def extent_end(number: int) -> int:
    """Return the first block behind the extent of block `number`."""
    return number - number % EXTENT_BLOCKS + EXTENT_BLOCKS


class BlockCache:
    """The blocks in a folder.

    Args:
        folder: folder of the blocks, created when a block is first written.
        limit_bytes: bytes that blocks may take.

    Attributes:
        room: removes files above the limit.
        ahead_bytes: bytes that a process may fetch ahead, which stay until they are read.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.ahead_bytes = limit_bytes // 8  # of several processes
        self.room = Room(folder, limit_bytes)
        self._guard = threading.Lock()
        self._held: dict[Path, tuple[Lock, int]] = {}  # with the number of threads
        # Mapped files, as long as one of their blocks is in use.
        self._opened: WeakValueDictionary[str, _File] = WeakValueDictionary()

    def path(self, key: str, number: int) -> Path:
        """Return the path of the file that begins with block `number`."""
        extent = number // EXTENT_BLOCKS
        place = hashlib.blake2b(f"{key} {extent}".encode(), digest_size=1).hexdigest()
        return self.folder / place / f"{key}-{number}"

    def get(
        self,
        key: str,
        number: int,
        size: int | None = None,
        *,
        verify: bool = True,
        mark: bool = True,
    ) -> memoryview | None:
        """Map the `size` bytes of a block; return None if it is missing or damaged.

        With `mark`, a file counts as read once its last block was returned.
        """
        for path, at in self._places(key, number):
            file = self._opened.get(path)
            file = self._open(path) if file is None else file
            if file is None or at >= file.num_blocks:
                continue
            block = file.block(at)
            if size is not None and len(block) != size:
                continue
            if at not in file.checked:
                if verify and zlib.crc32(block) != file.checksums[at]:
                    continue  # a newer file may have it
                if at == file.num_blocks - 1:
                    if not mark:
                        return block
                    mark_as_read(path)
                file.checked.add(at)
            return block
        return None

    def _places(self, key: str, number: int) -> Iterator[tuple[str, int]]:
        """Yield paths of files that may have a block, and its index there."""
        prefix = f"{self.path(key, number)}"[: -len(str(number))]
        for first in range(number, max(number // EXTENT_BLOCKS * EXTENT_BLOCKS, 0) - 1, -1):
            yield f"{prefix}{first}", number - first
        if number < 0:
            yield f"{prefix}{number}", 0

    def _open(self, path: str) -> _File | None:
        try:
            try:
                fd = os.open(path, _UNSEEN)
            except PermissionError:  # the file belongs to another user
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            size = os.fstat(fd).st_size
            if size <= _NUMBER.size:
                return None
            file = _file(_content(fd, size))
            if file is None:
                return None
        finally:
            os.close(fd)
        self._opened[path] = file
        return file

    def has(self, key: str, number: int) -> bool:
        """Return True if the block exists; it may be damaged."""
        return not self.missing(key, number, number + 1)

    def missing(self, key: str, first: int, end: int) -> list[int]:
        """Return the blocks of [first, end) that do not exist."""
        there: set[int] = set()
        for extent in range(first // EXTENT_BLOCKS, -(-end // EXTENT_BLOCKS)):
            begin = extent * EXTENT_BLOCKS
            prefix = f"{self.path(key, begin)}"[: -len(str(begin))]
            for number in range(begin, min(begin + EXTENT_BLOCKS, end)):
                file = self._opened.get(path := f"{prefix}{number}")  # may be evicted
                with suppress(OSError):
                    size = os.stat(path).st_size if file is None else len(file)
                    blocks = _num_blocks(size)
                    there.update(range(number, number + blocks))
        return [number for number in range(first, end) if number not in there]

    def put(self, key: str, number: int, content: bytes | memoryview) -> None:
        """Store consecutive blocks, from `number` on up to the end of their extent at most.

        Raises:
            StorageError: the folder cannot be written.
        """
        content = memoryview(content)
        most = max(1, self.room.quota // (4 * EXTENT_BLOCKS * BLOCK_BYTES)) * BLOCK_BYTES
        for at in range(0, max(len(content), 1), most):
            self._put(self.path(key, number + at // BLOCK_BYTES), content[at : at + most])

    def _put(self, path: Path, content: memoryview) -> None:
        # A process that waited for a lock in vain fetches without it, so it writes another part.
        part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")
        checksums = map(zlib.crc32, _blocks(content))
        trailer = b"".join(map(_NUMBER.pack, [len(content), *checksums]))
        for attempt in range(2):
            try:
                self._write(part, content, trailer)
                os.replace(part, path)
                break
            except FileNotFoundError as error:  # another process removed the folder
                if attempt:
                    raise self._unusable(error) from error
            except OSError as error:
                with suppress(OSError):
                    part.unlink()
                if attempt:
                    raise self._unusable(error) from error
                self.room.make(path)
        self._opened.pop(str(path), None)
        self.room.add(path, len(content))

    @contextmanager
    def fetching(self, key: str, first: int, end: int, *, wait_s: float = 0) -> Iterator[int]:
        """Enter a context in which no other process fetches blocks from `first` on.

        Args:
            key: key of the file.
            first, end: range of blocks.
            wait_s: longest time without a beat to wait for another fetch of block `first`.

        Yields:
            The end of the blocks that are fetched here: less than `end` if others fetch a block of
            the range, or one near it; `first` if they fetch that.
        """
        held: list[Path] = []
        stop = first
        try:
            while stop < end:
                begin = stop // _LOCKED_BLOCKS * _LOCKED_BLOCKS
                if not self._hold(self.lock_path(key, begin), 0 if held else wait_s, held):
                    break
                stop = min(begin + _LOCKED_BLOCKS, end)
            yield stop
        finally:
            for path in held:
                self._let_go(path)

    def _hold(self, path: Path, wait_s: float, held: list[Path]) -> bool:
        """Take a lock for all threads of this process, and note it in `held`; False without it."""
        patience = Patience(path, wait_s)
        while True:
            with self._guard:
                lock, count = self._held.get(path) or (self._lock(path), 0)
                if lock is not None:
                    self._held[path] = lock, count + 1
                    held.append(path)  # at once: an interrupt may come with any call
                    pulse().seen.append(lock.touch)
                    return True
            if patience.is_over():
                return False
            time.sleep(_PAUSE_S)  # without a beat: others may wait for this thread
            end_with_process()

    def _let_go(self, path: Path) -> None:
        with self._guard:
            lock, count = self._held.pop(path)
            with suppress(ValueError):  # after an interrupt
                pulse().seen.remove(lock.touch)
            if count > 1:
                self._held[path] = lock, count - 1
            else:
                lock.remove()

    def making(self, key: str) -> Lock | None:
        """Lock all blocks of a content; return None if another process has the lock.

        Raises:
            StorageError: the folder cannot be written.
        """
        return self._lock(self.lock_path(key))

    def lock_path(self, key: str, number: int = _ALL) -> Path:
        """Return the path of the lock on a block and those after it, or on a whole content."""
        path = self.path(key, number)
        return path.with_name(f".{path.name}.lock")

    def _lock(self, path: Path) -> Lock | None:
        for is_absent in (False, True, True):
            try:
                if is_absent:
                    path.parent.mkdir(parents=True, exist_ok=True)
                return Lock.acquire(path)
            except FileNotFoundError:  # the folder is new, or another process removed it
                continue
            except OSError as error:
                raise self._unusable(error) from error
        return None

    def forget(self, key: str, blocks: int, *, first: int = 0) -> bool:
        """Remove the blocks [first, blocks) of a file; return True if any existed."""
        existed = False
        for number in range(first, blocks):
            path = self.path(key, number)
            self._opened.pop(str(path), None)
            with suppress(OSError):
                path.unlink()
                existed = True
        return existed

    def _write(self, part: Path, content: memoryview, trailer: bytes) -> None:
        part.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            written = os.writev(fd, [content, trailer])
            if written != len(content) + len(trailer):
                raise OSError(f"only {written} bytes of a block were written")
        finally:
            os.close(fd)

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(
            f"The cache directory {self.folder.parent} cannot be used ({error}).",
            "Point `cache_dir` at a writable directory on a local disk with free space.",
            setting="cache_dir",
            path=str(self.folder.parent),
        )


class _File(np.ndarray[Any, np.dtype[np.uint8]]):
    """A mapped file of consecutive blocks, alive as long as one of their views.

    Attributes:
        num_blocks: number of its blocks.
        checksums: CRC-32 of each block.
        checked: indices of the blocks with the right checksum.
    """

    num_blocks: int
    checksums: list[int]
    checked: set[int]

    def block(self, at: int) -> memoryview:
        """Return a block by its index in the file."""
        end = len(self) - _NUMBER.size * (1 + self.num_blocks)
        return self.data[at * BLOCK_BYTES : min((at + 1) * BLOCK_BYTES, end)]


def _file(data: memoryview) -> _File | None:
    """Return the blocks of a file; None if it does not have the size that it declares."""
    file = np.asarray(data).view(_File)
    file.num_blocks, file.checked = _num_blocks(len(data)), set()
    size = len(data) - _NUMBER.size * (1 + file.num_blocks)
    if size < 0:
        return None
    declared, *file.checksums = (number for (number,) in _NUMBER.iter_unpack(data[size:]))
    return file if declared == size else None


def _num_blocks(file_bytes: int) -> int:
    """Return the number of blocks of a file with their checksums; 1 for an empty block."""
    return max(-(-(file_bytes - _NUMBER.size) // (BLOCK_BYTES + _NUMBER.size)), 0)


def _blocks(content: memoryview) -> Iterator[memoryview]:
    for at in range(0, max(len(content), 1), BLOCK_BYTES):
        yield content[at : at + BLOCK_BYTES]


def _content(fd: int, size: int) -> memoryview:
    """Map a file, or read it if the process has too many maps."""
    try:
        return mapped(fd, size).data
    except OSError:
        return memoryview(os.pread(fd, size, 0))
