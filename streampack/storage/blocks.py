"""The blocks of remote files that a host holds, shared by all of its processes.

A block is `BLOCK_BYTES` of one version of a file, or less at its end. It is written under another
name and renamed into place, so it is complete or absent, and never changes. A checksum behind its
bytes detects damage by a power failure or a disk. Readers map it without a lock: an evicted block
stays readable while it is mapped.

Blocks are spread over folders by their names, and folders over zones with an equal share of the
limit each. A process counts the bytes that it adds to a zone, looks through the zone after some of
them, and evicts the least recently opened blocks. So a scan takes the same time for any size of the
cache, and no record exists that a killed process could leave wrong.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streampack.errors import StorageError
from streampack.storage.locks import Lock
from streampack.storage.mapping import mapped

BLOCK_BYTES = 256 << 10

_FOLDERS = 256
_ZONE_BYTES = 64 << 20  # a smaller cache has fewer zones
_LEAST_BYTES = 4096  # smallest space that a file takes on a disk
_ALL = -2  # number in the name of the lock on all blocks of a content
_LOOKS = 32  # scans of a zone by a process, while it adds the zone's share of the limit
_STALE_S = 600.0  # age at which a part has no writer
_TRAILER = struct.Struct("<II")  # bytes of the block, and their CRC-32


def default_cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/streampack``, ``~/.cache/streampack``, or a temporary directory."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "streampack"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        pass
    else:
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    folder = Path(tempfile.gettempdir()) / f"streampack-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not folder.is_symlink() and folder.is_dir() and status.st_uid == os.getuid():
        return folder
    # Another user made that directory first, so its files must not be trusted.
    return Path(tempfile.mkdtemp(prefix="streampack-"))


class BlockCache:
    """The blocks in a folder.

    Args:
        folder: folder of the blocks, created when a block is first written.
        limit_bytes: bytes that blocks may take.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._added: dict[int, float] = {}

    def path(self, key: str, number: int) -> Path:
        """Return the path of block `number` of a file."""
        place = hashlib.blake2b(f"{key} {number}".encode(), digest_size=1).hexdigest()
        return self.folder / place / f"{key}-{number}"

    def get(
        self, key: str, number: int, size: int | None = None, *, verify: bool = True
    ) -> memoryview | None:
        """Map the `size` bytes of a block; return None if it is missing or damaged."""
        path = self.path(key, number)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            stored = os.fstat(fd).st_size - _TRAILER.size
            size = stored if size is None else size
            if stored != size or size < 0:
                return None
            data = _content(fd, size + _TRAILER.size)
            with suppress(OSError):  # the file belongs to another user
                os.utime(path)
        finally:
            os.close(fd)
        block = data[:size]
        if verify and data[size:] != _TRAILER.pack(size, zlib.crc32(block)):
            return None
        return block

    def has(self, key: str, number: int) -> bool:
        """Return True if the block exists; it may be damaged."""
        return self.path(key, number).exists()

    def put(self, key: str, number: int, block: bytes | memoryview) -> None:
        """Store a block.

        Raises:
            StorageError: the folder cannot be written.
        """
        path = self.path(key, number)
        # A process that waited for a lock in vain fetches without it, so it writes another part.
        part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")
        trailer = _TRAILER.pack(len(block), zlib.crc32(block))
        for attempt in range(2):
            try:
                self._write(part, block, trailer)
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
                self._look(self._zone(path), everything=True)  # makes room
        zone = self._zone(path)
        quota = self._quota()
        added = self._added.get(zone, random.random() * quota / _LOOKS)
        added += max(len(block), _LEAST_BYTES)
        if added >= quota / _LOOKS:
            added = 0.0
            self._look(zone)
        self._added[zone] = added

    @contextmanager
    def fetching(self, key: str, first: int, end: int, *, wait_s: float = 0) -> Iterator[int]:
        """Enter a context in which no other process fetches blocks from `first` on.

        Args:
            key: key of the file.
            first, end: range of blocks.
            wait_s: longest time to wait for another fetch of block `first`.

        Yields:
            The end of the blocks that are fetched here: less than `end` if others fetch a block of
            the range; `first` if they fetch that.
        """
        held: list[Lock] = []
        try:
            for number in range(first, end):
                lock = self._lock(key, number, 0 if held else wait_s)
                if lock is None:
                    break
                held.append(lock)
            yield first + len(held)
        finally:
            for lock in held:
                lock.remove()

    def making(self, key: str, *, wait_s: float = 0) -> Lock | None:
        """Lock all blocks of a content; return None if another process has the lock for `wait_s`.

        Raises:
            StorageError: the folder cannot be written.
        """
        return self._lock(key, _ALL, wait_s)

    def _lock(self, key: str, number: int, wait_s: float) -> Lock | None:
        path = self.path(key, number)
        path = path.with_name(f".{path.name}.lock")
        for _ in range(2):
            try:
                return Lock.acquire(path, wait_s=wait_s)
            except FileNotFoundError:
                with suppress(FileNotFoundError):
                    self._make_folder(path.parent)
            except OSError as error:
                raise self._unusable(error) from error
        return None  # the folder was removed in between

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unusable(error) from error

    def rename(self, key: str, new_key: str, number: int) -> None:
        """Give a block another key, if it exists."""
        new = self.path(new_key, number)
        with suppress(FileNotFoundError):
            new.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.path(key, number), new)

    def forget(self, key: str, blocks: int) -> bool:
        """Remove the `blocks` blocks of a file; return True if any existed."""
        existed = False
        for number in range(blocks):
            with suppress(OSError):
                self.path(key, number).unlink()
                existed = True
        return existed

    def _write(self, part: Path, block: bytes | memoryview, trailer: bytes) -> None:
        part.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            written = os.writev(fd, [block, trailer])
            if written != len(block) + len(trailer):
                raise OSError(f"only {written} bytes of a block were written")
        finally:
            os.close(fd)

    def _zones(self) -> int:
        zones = max(1, min(_FOLDERS, self.limit_bytes // _ZONE_BYTES))
        return 1 << (zones.bit_length() - 1)

    def _quota(self) -> int:
        return max(1, self.limit_bytes // self._zones())

    def _zone(self, path: Path) -> int:
        return int(path.parent.name, 16) % self._zones()

    def _names(self, zone: int) -> Iterator[os.DirEntry[str]]:
        for place in range(zone, _FOLDERS, self._zones()):
            with suppress(FileNotFoundError), os.scandir(self.folder / f"{place:02x}") as entries:
                yield from entries

    def _entries(self, zone: int) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        for item in self._names(zone):
            with suppress(OSError):
                yield item, item.stat(follow_symlinks=False)

    def _look(self, zone: int, *, everything: bool = False) -> None:
        """Keep a zone below its share of the limit."""
        quota = self._quota()
        if not everything and sum(BLOCK_BYTES for _ in self._names(zone)) < quota * 7 // 8:
            return
        total, stale_at = 0, time.time() - _STALE_S
        blocks: list[tuple[int, int, str]] = []
        for item, status in self._entries(zone):
            if item.name.startswith("."):
                if status.st_mtime < stale_at:
                    _remove_stale(Path(item.path))
                continue
            size = max(status.st_size, _LEAST_BYTES)
            total += size
            blocks.append((status.st_atime_ns, size, item.path))
        if total <= quota * 7 // 8 and not everything:  # processes add blocks between their looks
            return
        kept = quota // 2 if everything else quota * 3 // 4
        for _, size, path in sorted(blocks):
            if total <= kept:
                return
            total -= size
            _unlink(path)

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(
            f"The cache directory {self.folder.parent} cannot be used ({error}).",
            "Point `cache_dir` at a writable directory on a local disk with free space.",
            setting="cache_dir",
            path=str(self.folder.parent),
        )


def _content(fd: int, size: int) -> memoryview:
    """Map a file, or read it if the process has too many maps."""
    try:
        return mapped(fd, size).data
    except OSError:
        return memoryview(os.pread(fd, size, 0))


def _remove_stale(path: Path) -> None:
    """Remove a part or a lock of a killed process."""
    if path.suffix != ".lock":
        _unlink(str(path))
        return
    with suppress(OSError):
        if (lock := Lock.acquire(path)) is not None:
            lock.remove()


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
