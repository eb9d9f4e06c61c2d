"""Fetch blocks of remote files for one process, at once or ahead in threads.

Threads start when there is work and end when there is none, so an idle process has no thread.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from streampack.errors import StorageError
from streampack.storage.blocks import BLOCK_BYTES, STRIPE_BLOCKS, BlockCache
from streampack.storage.growing import MOST_TRIES, BlockWriter
from streampack.storage.remote import FileInfo, shown

if TYPE_CHECKING:
    from streampack.storage.files import RangedFile

logger = logging.getLogger(__name__)

_THREADS = 4
_MOST_TASKS = 256  # in the queue; a later task would run far behind its readers
_MOST_BLOCKS = 64  # fetched ahead of one reader

#: Called with a file, a range of its bytes and the number of retries (None is the default); returns
#: None if the server sends whole files only.
GetRange = Callable[[FileInfo, int, int, "int | None"], "bytes | None"]
#: Called with a file and the beginning of a writer; writes the whole file, checked at its end.
GetWhole = Callable[[FileInfo, Callable[[], BlockWriter]], BlockWriter]


class Fetcher:
    """Blocks of remote files, from the cache or fetched.

    Args:
        cache: cache of blocks.
        get: fetches a range of a file's bytes.
        get_whole: fetches a file from a server without ranges.
        ahead_bytes: bytes that may be fetched ahead of all readers together; 0 turns that off.

    Attributes:
        readers: open files.
    """

    def __init__(
        self, cache: BlockCache, get: GetRange, get_whole: GetWhole, ahead_bytes: int
    ) -> None:
        self.cache = cache
        self.readers = 0
        self._get, self._get_whole = get, get_whole
        self._ahead_bytes = ahead_bytes
        self._tasks = Tasks()

    @staticmethod
    def key(listed: FileInfo) -> str:
        """Return the key of a file's version for the names of its blocks, without its URL."""
        identity = f"{listed.path}\0{listed.num_bytes}\0{listed.version}".encode()
        return hashlib.blake2b(identity, digest_size=12).hexdigest()

    def most_ahead(self) -> int:
        """Maximum of blocks fetched ahead of one reader."""
        return min(self._ahead_bytes // max(self.readers, 1) // BLOCK_BYTES, _MOST_BLOCKS)

    def kept(self, file: RangedFile, number: int) -> memoryview | None:
        """Return a block if this host has it; None otherwise."""
        return self.cache.get(file.key, number, file.block_bytes(number))

    def fetched(self, file: RangedFile, number: int, end: int) -> memoryview:
        """Fetch a block now, with the missing blocks of its stripe up to `end`; return it."""
        found = self._fetch(file, number, end)
        assert found is not None
        return found

    def fetch_ahead(self, file: RangedFile, number: int, end: int) -> None:
        """Queue blocks of a stripe for fetching while `file` is open; its reader meets failures."""
        self._tasks.add(lambda: file.closed or self._fetch(file, number, end, ahead=True))

    def in_background(self, task: Callable[[], object]) -> None:
        """Call `task` in one of the threads; its errors are dropped."""
        self._tasks.add(task)

    def _fetch(
        self, file: RangedFile, number: int, end: int, *, ahead: bool = False
    ) -> memoryview | None:
        cache, key = self.cache, file.key
        end = min(end, number - number % STRIPE_BLOCKS + STRIPE_BLOCKS)
        end = min(end, -(-file.num_bytes // BLOCK_BYTES))
        with cache.fetching(key, number):
            found = None if ahead else self.kept(file, number)
            if found is not None:
                return found
            missing = [n for n in range(number + (not ahead), end) if not cache.has(key, n)]
            missing = missing if ahead else [number, *missing]
            while missing:
                run = 1
                while run < len(missing) and missing[run] == missing[0] + run:
                    run += 1
                view = self._put(file, missing[0], missing[0] + run, 0 if ahead else None)
                found = view if found is None else found
                del missing[:run]
            return found

    def _put(self, file: RangedFile, first: int, end: int, retries: int | None) -> memoryview:
        """Fetch and store consecutive blocks; return the first one."""
        stop = min(end * BLOCK_BYTES, file.num_bytes)
        found = self._get(file.listed, first * BLOCK_BYTES, stop, retries)
        if found is None:
            return self._put_whole(file, first)
        data = memoryview(found)
        for number in range(first, end):
            at = (number - first) * BLOCK_BYTES
            self.cache.put(file.key, number, data[at : at + BLOCK_BYTES])
        size = file.block_bytes(first)
        # A mapped block uses the page cache; the block may be evicted by now.
        mapped = self.cache.get(file.key, first, size, verify=False)
        return data[:size] if mapped is None else mapped

    def _put_whole(self, file: RangedFile, number: int) -> memoryview:
        """Fetch and store a whole file; return one of its blocks.

        Blocks get their names once all are there and the version was checked.
        """
        cache, key, listed = self.cache, file.key, file.listed
        new = hashlib.blake2b(f"{key} whole".encode(), digest_size=12).hexdigest()
        with cache.fetching(key, None):
            for _ in range(MOST_TRIES):
                if (view := self.kept(file, number)) is not None:
                    return view
                if listed.num_bytes > cache.limit_bytes // 2:
                    break
                writer = self._get_whole(listed, lambda: BlockWriter(cache, new, listed.num_bytes))
                for n in range(writer.num_blocks):
                    cache.rename(new, key, n)
            if (view := self.kept(file, number)) is not None:
                return view
        raise StorageError(
            f"{shown(listed.path)} cannot be kept in the cache: it has {listed.num_bytes} bytes, "
            f"its server sends whole files only, and cache_limit_bytes is {cache.limit_bytes}.",
            "Raise cache_limit_bytes to twice the size of files at least, and leave cache_dir "
            "alone while it is in use.",
            setting="cache_limit_bytes",
            path=shown(listed.path),
        )


class Tasks:
    """Run calls in order on a few threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], object]] = deque()
        self._threads = 0

    def add(self, task: Callable[[], object]) -> None:
        """Queue a call unless too many are waiting; its errors are dropped."""
        with self._lock:
            if len(self._waiting) >= _MOST_TASKS:
                return
            self._waiting.append(task)
            if self._threads < _THREADS:
                self._threads += 1
                threading.Thread(
                    target=self._work, name="streampack-read-ahead", daemon=True
                ).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                task = self._waiting.popleft()
            try:
                task()
            except Exception as error:  # the reader meets the error, after all its retries
                logger.debug("reading ahead failed: %s", error)
