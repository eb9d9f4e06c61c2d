"""Files of the cache that are made on this host, once, and read while they grow.

The first process that needs such a file makes it, in a thread. All others, and its own readers, see
how far it has got by the size of the part, and that it is complete by its final name. Whatever ends
the making also releases the lock of the part (see `Cache`): then the next reader that waits makes
the file anew. What makes a file must give the same bytes whenever it is called, so readers go on
where they were.
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
MOST_TRIES = 3  # to make a file that somebody removes meanwhile
_PAUSES_S = (0.0005, 0.02)  # between looks at a file that has not grown: at first, and at most


class NotMadeError(Exception):
    """The file cannot be made by this process."""


class _StoppedError(Exception):
    """The file need not be made any longer."""


class _Part(io.FileIO):
    """The part that its writer has locked, with so many bytes at most; writes are not buffered."""

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
    """A file that is made on this host, as far as it is made.

    Args:
        cache: in which it is.
        entry: its names there, of `ANY_SIZE`.
        make: writes it. Whatever it raises, the file is not made again by this process.
        name: of what it is made of, for the log.

    Raises:
        NotMadeError: it cannot be made; so do the methods.
    """

    def __init__(
        self, cache: Cache, entry: Entry, make: Callable[[IO[bytes]], None], name: str
    ) -> None:
        self._cache, self._entry, self._make, self._name = cache, entry, make, name
        #: What its readers note of it, for the next ones of this process.
        self.known = cache.known(entry)
        self._tries = 0
        self._fd = -1
        self._has_name = False  # the open file has its final name, so it grows no more
        self._is_complete = False  # and is mapped to its end
        self._data = memoryview(b"")
        self._open()

    def close(self) -> None:
        """Views of the file stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def has(self, end: int) -> bool:
        """Wait until the file has so many bytes; False if it is complete with fewer."""
        pause_s, most_s = _PAUSES_S
        while end > len(self._data) and not self._is_complete:
            if not self._grew():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, most_s)
                if not self._grew():
                    self._open()
        return end <= len(self._data)

    def view(self, at: int, size: int) -> memoryview:
        """Some of its bytes; the file `has` them."""
        return self._data[at : at + size]

    def whole(self) -> NDArray[np.uint8]:
        """(B,) uint8: the complete file, which is waited for."""
        pause_s, most_s = _PAUSES_S
        while not self._is_complete:
            if not self._grew():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, most_s)
                self._open()
        return np.frombuffer(self._data, dtype=np.uint8)

    def _grew(self) -> bool:
        """Look at the file; True if there is more of it, or its end is known."""
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
        """Open what there is of the file; begin to make it if nobody does."""
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
            if entry.data.exists() or entry.part.stat().st_size:  # of a dead process
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
    """Make the file whose part is locked, give it its name, and release the lock."""
    try:
        with cache.keeping(entry), _opened_part(cache, entry, lock) as out:
            make(out)
            os.fsync(out.fileno())  # or bytes could be missing after a power failure
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
    """Say what it costs that a file is not made, if its content is not the reason."""
    if is_of_system(error) or isinstance(error, StorageError):
        logger.warning(
            "%s is decoded again for every part of it that a lane reads, which may take many times "
            "as long: its content cannot be kept in the cache (%s). Raise cache_limit_bytes, or "
            "let cache_dir name a folder on a larger disk.", name, error,
        )  # fmt: skip
