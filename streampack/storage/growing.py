"""Content that one process of a host writes into blocks, and all read while it grows.

The first process that needs such content makes it, in a thread, under a lock. Readers take each
block as it appears. If the maker stops for any reason, its lock is released, and the next waiting
reader makes the content anew; blocks that are there stay. The writing function must give the same
bytes on every call, so that readers continue at their offsets.
"""

from __future__ import annotations

import errno
import io
import logging
import shutil
import struct
import threading
import time
import weakref
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from streampack.at_exit import at_exit
from streampack.errors import StorageError, StreampackError
from streampack.file_info import FileInfo
from streampack.keep_last import KeepLast
from streampack.storage.blocks import BLOCK_BYTES, BlockCache
from streampack.storage.decompression import DamagedError
from streampack.storage.files import StoredFile, is_of_system
from streampack.storage.locks import Lock, Patience
from streampack.storage.room import DERIVED, KEY_BYTES
from streampack.threads import is_ending, pause, pulse, start_daemon

logger = logging.getLogger(__name__)

THREAD_NAME = "streampack-decode"
MOST_TRIES = 3  # attempts to make content while its blocks are evicted
_PAUSES_S = (0.0005, 0.02)  # between looks for a missing block: first, and longest
_KEPT_BLOCKS = 64
_SIZE = -1  # number of the block that complete content has behind the others
_END = struct.Struct("<q?")  # size of the content, and True without a fault, which follows
_MOST_KNOWN = 64  # number of contents with kept notes


_makers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
PATIENCE_S = 20.0  # longest time without a beat of another maker
_END_S = 1.5  # longest time for makers to notice that the process ends


def _end_makers() -> None:
    until = time.monotonic() + _END_S
    for maker in list(_makers):
        maker.join(max(until - time.monotonic(), 0))


at_exit("decoding", _end_makers)


#: Writes a content; returns the fault at which it ends, or "".
Write = Callable[[IO[bytes]], str]


def derived_key(file: StoredFile, what: str) -> str:
    """Return the key of a content that is derived from a file; `Room` knows its origin by it."""
    name, *version = map(str, file.version)
    key = FileInfo(name, 0, "\0".join([*version, what])).key
    origin = file.listed.key if file.listed else key
    return origin[:KEY_BYTES] + key[KEY_BYTES:] + DERIVED


class NotMadeError(Exception):
    """Raised if this process cannot make the content; `cause` is the reason."""

    def __init__(self, cause: Exception | None = None) -> None:
        super().__init__(cause)
        self.cause = cause


class _StoppedError(BaseException):
    """Raised to stop making content that is no longer needed."""


class BlockWriter(io.RawIOBase):
    """Cut written bytes into blocks; blocks that exist are not written again.

    Args:
        cache, key: cache, and key of the blocks.
        most_bytes: limit of the content.
        lock: lock of the maker, which stops once the lock is lost or the process ends;
            None makes the content without it.
    """

    def __init__(
        self, cache: BlockCache, key: str, most_bytes: float, lock: Lock | None = None
    ) -> None:
        self._cache, self._key, self._left, self._lock = cache, key, most_bytes, lock
        self._rest = bytearray()
        self.num_blocks = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._lock and (is_ending() or not self._lock.is_current()):
            raise _StoppedError
        pulse().beat()
        added = memoryview(data).cast("B")
        self._left -= len(added)
        if self._left < 0:
            raise OSError(errno.ENOSPC, "it has more bytes than there is room for")
        self._rest += added
        done = len(self._rest) - len(self._rest) % BLOCK_BYTES
        for at in range(0, done, BLOCK_BYTES):
            self._put(bytes(self._rest[at : at + BLOCK_BYTES]))
        del self._rest[:done]
        return len(added)

    def finish(self) -> int:
        """Write the last block; return the size of the content in bytes."""
        num_bytes = self.num_blocks * BLOCK_BYTES + len(self._rest)
        if self._rest:
            self._put(bytes(self._rest))
        return num_bytes

    def _put(self, block: bytes) -> None:
        cache, key, number = self._cache, self._key, self.num_blocks
        if not cache.has(key, number) or cache.get(key, number, len(block)) is None:
            cache.put(key, number, block)
        self.num_blocks += 1


class Growings:
    """The contents that a process reads or makes.

    Args:
        cache: cache of the blocks; one content may have half of its limit.
    """

    def __init__(self, cache: BlockCache) -> None:
        self.cache = cache
        # Errors by key of contents that this process could not make.
        self.failed: dict[str, Exception] = {}
        # Notes of their readers, for later readers in this process.
        self.known: KeepLast[str, dict[int, Any]] = KeepLast(_MOST_KNOWN)
        # Mapped blocks, by key and number.
        self.views: KeepLast[tuple[str, int], memoryview] = KeepLast(_KEPT_BLOCKS)

    def refuse(self, key: str, name: str, error: Exception) -> None:
        """Stop making a content; log the cost, unless the content itself is the reason.

        A content without a name has no cost: it cannot be read in another way.
        """
        if key in self.failed:
            return
        self.failed[key] = error
        if name and (is_of_system(error) or getattr(error, "setting", "")):
            logger.warning(
                "%s is decoded again for every part of it that a lane reads, which may take many "
                "times as long: its content cannot be kept in the cache (%s). Raise "
                "cache_limit_bytes, or let cache_dir name a folder on a larger disk.", name, error,
            )  # fmt: skip

    def make(self, key: str, name: str, lock: Lock | None, write: Write) -> None:
        """Make a content under its lock, and release the lock; None makes it without one."""
        writer = None
        if lock is not None:
            pulse().seen.append(lock.touch)
        try:
            room = shutil.disk_usage(self.cache.folder).free * 9 // 10
            writer = BlockWriter(self.cache, key, min(self.cache.limit_bytes // 2, room), lock)
            fault = write(writer)  # type: ignore[arg-type]
            size = writer.finish()
            self.cache.put(key, _SIZE, _END.pack(size, not fault) + fault.encode())
            if name:
                logger.info("%s was decoded into the cache: %d bytes", name, size)
        except (_StoppedError, FileNotFoundError):
            pass  # the cache was removed
        except Exception as error:
            self.refuse(key, name, error)
            if writer is not None:
                self.cache.forget(key, writer.num_blocks)
        finally:
            if lock is not None:
                lock.remove()


class GrowingFile(StoredFile):
    """A content of this host as a file, readable as far as it has grown.

    Args:
        growings: contents of this process.
        key: key of its blocks.
        name: name of its origin, for messages; "" for a content that is no derived one.
        write: writes the content. After an error of it this process does not try once more, until
            it was raised.
        num_bytes: size of the content if it is known.
    """

    mapped = False

    def __init__(
        self, growings: Growings, key: str, name: str, write: Write, num_bytes: int = -1
    ) -> None:
        self._growings, self._key, self._name, self._write = growings, key, name, write
        self.version = (key,)
        self.num_bytes = num_bytes  # unknown until it is complete
        self._end = -1  # its size, once it is complete
        self.known = growings.known.keep(key, dict)
        self._tries = 0

    def has(self, end: int) -> bool:
        """Wait until there are `end` bytes; return False if the content is complete with fewer.

        Raises:
            NotMadeError: the content cannot be made; `view` raises it too.
        """
        number = max(end - 1, 0) // BLOCK_BYTES
        return end <= number * BLOCK_BYTES + len(self.block(number))

    def view(self, at: int, size: int) -> memoryview:
        """Return `size` bytes from `at` on; `has` must have returned True for them."""
        number, inside = divmod(at, BLOCK_BYTES)
        block = self.block(number)[inside : inside + size]
        if len(block) == size:
            return block
        parts = [block]
        while (left := size - sum(map(len, parts))) > 0 and len(parts[-1]):
            number += 1
            parts.append(self.block(number)[:left])
        return memoryview(b"".join(parts))

    def fault(self) -> str:
        """Wait until the content is complete; return the fault at which it ends, or "".

        Sets `num_bytes`. A content with a fault is made anew where it is opened next.

        Raises:
            StorageError: there is no room for the content, or the origin cannot be read.
        """
        try:
            end = self.block(_SIZE)
        except NotMadeError as error:
            raise self._not_made(error) from error
        self.num_bytes, is_whole = _END.unpack_from(end)
        if is_whole:
            return ""
        blocks = -(-self.num_bytes // BLOCK_BYTES)
        for number in range(_SIZE, blocks):
            self._growings.views.pop((self._key, number), None)
        self._growings.cache.forget(self._key, blocks, first=_SIZE)
        return bytes(end[_END.size :]).decode() or "its compressed data breaks off"

    def array(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Wait for a range; see `StoredFile.array`.

        Raises:
            DamagedError: the content ends before its known size.
        """
        stop = min(stop, self.num_bytes) if self.num_bytes >= 0 else stop
        try:
            data = np.frombuffer(self.view(start, max(stop - start, 0)), dtype=np.uint8)
        except NotMadeError as error:
            raise self._not_made(error) from error
        if self.num_bytes >= 0 and len(data) < stop - start:
            raise DamagedError(self.fault() or f"it ends before byte {self.num_bytes}")
        return data

    def _not_made(self, error: NotMadeError) -> Exception:
        self._growings.failed.pop(self._key, None)
        if isinstance(error.cause, StreampackError):
            return error.cause
        return StorageError(
            f"The content of {self._name} cannot be kept in the cache ({error.cause}).",
            "Raise cache_limit_bytes, or let cache_dir name a folder on a larger disk.",
            path=self._name,
        )

    def block(self, number: int) -> memoryview:
        """Return a block, empty after the end; wait for it, or begin to make it.

        Raises:
            NotMadeError: the content cannot be made.
        """
        cache, key = self._growings.cache, self._key
        view = self._growings.views.get((key, number))
        if view is not None:
            return view
        pause_s, most_s = _PAUSES_S
        patience = Patience(cache.lock_path(key), PATIENCE_S)
        while (cause := self._growings.failed.get(key)) is None:
            view = cache.get(key, number)
            if view is None and self._end < 0:
                end = cache.get(key, _SIZE)
                self._end = -1 if end is None else _END.unpack_from(end)[0]
            if view is None and 0 <= self._end <= number * BLOCK_BYTES:
                view = memoryview(b"")
            if view is not None:
                return self._growings.views.keep((key, number), view.toreadonly)
            if not self.begin(number):
                pause(pause_s)
                pause_s = min(2 * pause_s, most_s)
                if patience.is_over():
                    stopped = OSError(errno.EAGAIN, "the process that makes it does not go on")
                    self._growings.refuse(key, self._name, stopped)
        raise NotMadeError(cause)

    def begin(self, number: int) -> bool:
        """Begin to make the content if this block is missing.

        Return False if a thread or another process makes it.
        """
        growings, key = self._growings, self._key
        try:
            lock = growings.cache.making(key)
        except StorageError as error:
            growings.refuse(key, self._name, error)
            return True
        if lock is None:
            return False
        maker = None
        try:
            if growings.cache.get(key, number) is None:  # else another process made it meanwhile
                maker = self._started(lock)
        finally:  # also after an interrupt
            if maker is None:
                lock.remove()
        return maker is None

    def _started(self, lock: Lock) -> threading.Thread | None:
        """Start the thread that makes the content; None if this process is not to make it."""
        growings, key = self._growings, self._key
        self._tries += 1
        if self._tries > MOST_TRIES:
            lost = f"it disappeared from the cache {MOST_TRIES} times while it was made."
            remedy, setting = "Raise cache_limit_bytes.", "cache_limit_bytes"
            growings.refuse(key, self._name, StorageError(lost, remedy, setting=setting))
            return None
        maker = start_daemon(growings.make, key, self._name, lock, self._write, name=THREAD_NAME)
        if maker is None:
            growings.refuse(key, self._name, OSError(errno.EAGAIN, "no thread can be started"))
        else:
            _makers.add(maker)
        return maker
