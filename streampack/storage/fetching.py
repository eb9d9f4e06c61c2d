"""Fetch blocks of remote files for one process, at once or ahead."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, TYPE_CHECKING

from streampack.errors import StorageError
from streampack.file_info import FileInfo, shown
from streampack.storage import locks
from streampack.storage.blocks import BLOCK_BYTES, BlockCache
from streampack.storage.growing import GrowingFile, Growings, NotMadeError
from streampack.storage.plans import Plans

if TYPE_CHECKING:
    from streampack.storage.ranged_file import RangedFile

logger = logging.getLogger(__name__)

#: Called with a file and a range of its bytes; returns None if the server sends whole files only.
GetRange = Callable[[FileInfo, int, int], "memoryview | None"]
#: Called with a file and a stream; writes the whole file as it comes, after all retries.
GetWhole = Callable[[FileInfo, IO[bytes]], str]
#: Called with a file, an attempt and the number of retries (None is the default).
Attempts = Callable[
    [FileInfo, Callable[[], "memoryview | None"], "int | None"], "memoryview | None"
]


class Fetcher:
    """Blocks of remote files, from the cache or fetched.

    Args:
        cache: cache of blocks.
        growings: returns the growing contents of the process.
        get: fetches a range of a file's bytes, in one attempt.
        get_whole: writes a file from a server without ranges.
        attempts: makes attempts.
        ahead_bytes: bytes that may be fetched ahead of all readers together; 0 turns that off.

    Attributes:
        plans: fetch blocks before their readers ask for them.
    """

    def __init__(
        self,
        cache: BlockCache,
        growings: Callable[[], Growings],
        get: GetRange,
        get_whole: GetWhole,
        attempts: Attempts,
        ahead_bytes: int,
    ) -> None:
        self.cache, self._growings = cache, growings
        self.plans = Plans(self._fetch_ahead, ahead_bytes)
        self._get, self._get_whole, self._attempts = get, get_whole, attempts
        self._others: set[str] = set()  # files with a log line on the locks of other processes

    def kept(self, file: RangedFile, number: int, *, verify: bool = True) -> memoryview | None:
        """Return a block if this host has it; None otherwise."""
        size, mark = file.block_bytes(number), not file.needed_again
        return self.cache.get(file.key, number, size, verify=verify, mark=mark)

    def block(self, file: RangedFile, number: int, end: int) -> memoryview:
        """Return a block for a reader that needs all up to `end`; fetch them if it is missing."""
        view = self.kept(file, number)
        if view is None:
            stop = self.plans.claim(file.key, number, end, locks.PATIENCE_S)
            try:
                view = self._fetched(file, number, stop)
            finally:
                self.plans.release(file.key, number, stop)
        if view is None:
            view = self._of_whole(file, number)
        if not self.plans.is_ahead:  # blocks that a plan itself reads are still ahead
            self.plans.used(file.key, number)
        return view

    def _fetched(self, file: RangedFile, number: int, end: int) -> memoryview | None:
        """Fetch a block now, with missing blocks up to `end`; return it.

        Return None if its server sends whole files only.

        The blocks are locked during each attempt, and not between them. Without the lock after
        `PATIENCE_S`, as while its process is stopped, the block is fetched here too; at once if
        this process itself has waited for it so long, which `end` at the block stands for.
        """
        wait_s, end = locks.PATIENCE_S if end > number else 0, max(end, number + 1)
        end = min(end, -(-file.num_bytes // BLOCK_BYTES))

        def attempt() -> memoryview | None:
            with self.cache.fetching(file.key, number, end, wait_s=wait_s) as stop:
                block = self.kept(file, number)
                if block is not None:
                    return block
                if stop == number:
                    self._without_lock(file)
                missing = self._missing(file, number + 1, stop)
                for first, last in _runs([number, *missing]):
                    data = self._stored(file, first, last)
                    if data is None:
                        break
                    if block is None:  # a mapped one uses the page cache; it may be evicted by now
                        kept = self.kept(file, number, verify=False)
                        block = kept or data[: file.block_bytes(number)]
                return block

        retries = 0 if self.plans.is_ahead else None
        return self._attempts(file.listed, attempt, retries)

    def _without_lock(self, file: RangedFile) -> None:
        if file.key not in self._others:
            self._others.add(file.key)
            logger.warning(
                "Another process has got no byte of a part of %s for %.0f s, or is stopped; it is "
                "fetched here too.", shown(file.listed.path), locks.PATIENCE_S,
            )  # fmt: skip

    def _fetch_ahead(self, file: RangedFile, first: int, end: int) -> bool:
        """Fetch the missing blocks of [first, end) that nobody else fetches; without retries.

        Return False if none are missing.
        """
        asked = False
        while missing := self._missing(file, first, end):
            first = missing[0]
            # A thread or process may be fetching other blocks with the same lock.
            with self.cache.fetching(file.key, first, end, wait_s=locks.PATIENCE_S) as stop:
                if stop == first:  # who does not go on; the reader need not wait for it once more
                    return asked
                for run in _runs(self._missing(file, first, stop)):
                    asked = True
                    if self._stored(file, *run) is None:
                        self._whole(file).begin(first)
                        return asked
            first = stop
        return asked

    def _missing(self, file: RangedFile, first: int, end: int) -> list[int]:
        return self.cache.missing(file.key, first, end)

    def _stored(self, file: RangedFile, first: int, end: int) -> memoryview | None:
        """Fetch, store and return consecutive blocks; None if the server sends no ranges."""
        stop = min(end * BLOCK_BYTES, file.num_bytes)
        data = self._get(file.listed, first * BLOCK_BYTES, stop)
        if data is not None:
            self.cache.put(file.key, first, data)
        return data

    def _whole(self, file: RangedFile) -> GrowingFile:
        """Return a file of a server without ranges, which one process of the host fetches."""
        if file.num_bytes > self.cache.limit_bytes // 2:
            raise StorageError(
                f"{shown(file.listed.path)} cannot be kept in the cache: it has {file.num_bytes} "
                "bytes, its server sends whole files only, and cache_limit_bytes is "
                f"{self.cache.limit_bytes}.",
                "Raise cache_limit_bytes to twice the size of files at least.",
                setting="cache_limit_bytes",
                path=shown(file.listed.path),
            )
        return GrowingFile(self._growings(), file.key, "", partial(self._get_whole, file.listed))

    def _of_whole(self, file: RangedFile, number: int) -> memoryview:
        """Return a block of a file of a server without ranges, once it has come."""
        while True:
            try:
                return self._whole(file).block(number)
            except NotMadeError as error:
                self._growings().failed.pop(file.key, None)
                if getattr(error.cause, "errno", None) != errno.EAGAIN:  # nobody goes on with it
                    raise error.cause or error  # noqa: B904  # it has a cause of its own
            self._without_lock(file)
            self._growings().make(file.key, "", None, partial(self._get_whole, file.listed))


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the bounds [first, end) of consecutive numbers."""
    first = 0
    for k in range(1, len(numbers) + 1):
        if k == len(numbers) or numbers[k] != numbers[k - 1] + 1:
            yield numbers[first], numbers[k - 1] + 1
            first = k
