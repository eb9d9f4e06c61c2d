"""Cached files that are made once on this host, and read while they grow.

The first process that needs such a file makes it, in a thread. All readers see its progress by the
size of the part, and its completion by the final name. If the writer stops for any reason, the lock
of the part is released (see `Cache`), and the next waiting reader makes the file anew. The writing
function must give the same bytes on every call, so that readers continue at their offsets.
"""

from __future__ import annotations

import errno
import io
import logging
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import StorageError
from streampack.storage.failures import is_of_system
from streampack.storage.locks import Lock

if TYPE_CHECKING:
    from streampack.storage.cache import Cache, Entry

logger = logging.getLogger("streampack.storage.cache")

THREAD_NAME = "streampack-decode"
MOST_TRIES = 3  # to make a file that other processes remove meanwhile
_PAUSES_S = (0.0005, 0.02)  # between checks of a file that has not grown: first, and longest


class NotMadeError(Exception):
    """Raised if this process cannot make the file."""


class _StoppedError(Exception):
    """Raised to stop making a file that is no longer needed."""


class _Part(io.FileIO):
    """The part locked by its writer, with at most `most_bytes` bytes; writes are not buffered."""

    def __init__(self, path: Path, lock: Lock, most_bytes: int) -> None:
        super().__init__(path, "r+")
        self._path, self._lock, self._left = path, lock, most_bytes

    def write(self, data: Any) -> int:
        if not threading.main_thread().is_alive() or not self._lock.is_of(self._path):
            raise _StoppedError
        rest = memoryview(data).cast("B")
        size = len(rest)
        self._left -= size
        if self._left < 0:
            raise OSError(errno.ENOSPC, "it has more bytes than there is room for")
        while rest:
            rest = rest[super().write(rest) :]
        return size


class GrowingFile:
    """A file that is made on this host, readable as far as it has grown.

    Args:
        cache: cache with the file.
        entry: names in the cache, of `ANY_SIZE`.
        make: writes the file. After any error of it this process does not try once more.
        name: name of the file's origin, for the log.

    Raises:
        NotMadeError: the file cannot be made; the methods raise it too.
    """

    def __init__(
        self, cache: Cache, entry: Entry, make: Callable[[IO[bytes]], None], name: str
    ) -> None:
        self._cache, self._entry, self._make, self._name = cache, entry, make, name
        #: Notes of its readers, for later readers in this process.
        self.known = cache.known(entry)
        self._tries = 0
        self._fd = -1
        self._has_name = False  # True: the open file has its final name, so it is complete
        self._is_complete = False  # True: it is mapped to its end
        self._data = memoryview(b"")
        self._open()

    def close(self) -> None:
        """Close the file; its views stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def has(self, end: int) -> bool:
        """Wait until the file has `end` bytes; return False if it is complete with fewer."""
        pause_s, most_s = _PAUSES_S
        while end > len(self._data) and not self._is_complete:
            if not self._grew():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, most_s)
                if not self._grew():
                    self._open()
        return end <= len(self._data)

    def view(self, at: int, size: int) -> memoryview:
        """Return `size` bytes from `at` on; `has` must have returned True for them."""
        return self._data[at : at + size]

    def whole(self) -> NDArray[np.uint8]:
        """Wait for the complete file; return it as (B,) uint8."""
        pause_s, most_s = _PAUSES_S
        while not self._is_complete:
            if not self._grew():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, most_s)
                self._open()
        return np.frombuffer(self._data, dtype=np.uint8)

    def _grew(self) -> bool:
        """Check the file; return True if it has grown, or its end is known."""
        if not self._has_name and self._entry.data.exists():
            self._open()
        size = os.fstat(self._fd).st_size
        grew = size > len(self._data)
        if grew:
            mapped = mmap.mmap(self._fd, size, access=mmap.ACCESS_READ)
            self._data = memoryview(mapped)
        self._is_complete = self._has_name
        return grew or self._is_complete

    def _open(self) -> None:
        """Open the file in its current state; begin to make it if no process does."""
        entry = self._entry
        while entry.data not in self._cache.not_made:
            fd = _opened(entry.data)
            has_name = fd is not None
            if fd is None:
                try:
                    self._begin()
                except (OSError, StorageError) as error:
                    self._cache.refuse(entry, self._name, error)
                fd = _opened(entry.part)
            if fd is not None:
                self.close()
                self._fd, self._has_name = fd, has_name
                return
        raise NotMadeError

    def _begin(self) -> None:
        entry = self._entry
        lock = self._cache.lock(entry.part, exclusive=True, wait=False)
        if lock is None:
            return
        try:
            if entry.data.exists() or entry.part.stat().st_size:  # left by a dead process
                entry.part.unlink()
                lock.release()
                return
            self._tries += 1
            if self._tries > MOST_TRIES:
                raise StorageError(
                    f"{entry.part} was removed {MOST_TRIES} times while it was written.",
                    "Leave the cache directory alone for a while, and restart.",
                    path=str(entry.part),
                )
            arguments = (self._cache, entry, lock, self._make, self._name)
            threading.Thread(target=_write, args=arguments, name=THREAD_NAME).start()
        except FileNotFoundError:
            lock.release()
        except BaseException:
            lock.release()
            raise


def _opened(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _write(
    cache: Cache, entry: Entry, lock: Lock, make: Callable[[IO[bytes]], None], name: str
) -> None:
    """Make the file with the locked part, rename it, and release the lock."""
    try:
        with cache.keeping(entry), _opened_part(cache, entry, lock) as out:
            make(out)
            os.fsync(out.fileno())  # else bytes could be missing after a power failure
            if lock.is_of(entry.part):
                logger.info("%s was decoded into the cache: %d bytes", name, out.tell())
                os.replace(entry.part, entry.data)
                cache.evict(0)
    except _StoppedError:
        pass
    except Exception as error:
        cache.refuse(entry, name, error)
    finally:
        with suppress(OSError):
            if lock.is_of(entry.part):
                entry.part.unlink()
        lock.release()


def _opened_part(cache: Cache, entry: Entry, lock: Lock) -> _Part:
    try:
        cache.evict(0)
        room = min(cache.limit_bytes, shutil.disk_usage(entry.part.parent).free * 9 // 10)
        return _Part(entry.part, lock, room)
    except FileNotFoundError as error:  # it was removed
        raise _StoppedError from error


def explain(name: str, error: Exception) -> None:
    """Log the cost of a file that is not made, unless its content is the reason."""
    if is_of_system(error) or isinstance(error, StorageError):
        logger.warning(
            "%s is decoded again for every part of it that a lane reads, which may take many times "
            "as long: its content cannot be kept in the cache (%s). Raise cache_limit_bytes, or "
            "let cache_dir name a folder on a larger disk.", name, error,
        )  # fmt: skip
