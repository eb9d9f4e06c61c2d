"""Bytes that a process fetches before its readers ask for them.

Readers take turns: a lane fills its window, then every other lane does. A process holds as many
bytes ahead as it uses in `_AHEAD_S` seconds, waits for the store not counted: with a slow loop few,
with a fast one as many as the storage allows. Among readers, the one read longest ago comes first,
since its turn is next; each may hold a multiple of its share of all use, and about twice as much as
it has used so far. The first blocks of ranges that are read soon, by hints, come before that, and
the other ones after it.

Threads start when there is work, and end half a second after there is none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from streampack.at_exit import at_exit
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.waiting import start_daemon

if TYPE_CHECKING:
    from streampack.storage.file_info import FileInfo
    from streampack.storage.ranged_file import RangedFile

logger = logging.getLogger(__name__)

#: Blocks fetched by the first request of a reader.
FIRST_BLOCKS = 4
#: Maximum of blocks in a request.
MOST_BLOCKS = 16

_AHEAD_S = 2.0
_LEAST_AHEAD = 32  # blocks ahead of all readers
_SHARES = 4  # multiple of its share of all use that a reader may hold ahead
_MEASURED_S = 4.0
_MEASURED_BLOCKS = 1024
_NAME, _THREADS = "streampack-read-ahead", 16
_IDLE_S = 0.5  # starting a thread takes as long as reading a block that is there
_MOST_HINTS = 256  # a later one would be called after its readers

_ends = False  # True while the interpreter shuts down, where threads end and keep their locks


def _end() -> None:
    global _ends
    _ends = True


at_exit("reading ahead", _end)


class Hint(NamedTuple):
    """A range of a file that is read soon.

    Attributes:
        begin: called with `file`, `start` and `stop`; fetches the range.
        file: the file.
        start, stop: bytes [start, stop).
    """

    begin: Callable[[FileInfo, int, int], object]
    file: FileInfo
    start: int
    stop: int

    def fetch(self) -> None:
        """Fetch the range."""
        self.begin(self.file, self.start, self.stop)

    def joined(self, following: Hint) -> Hint | None:
        """Return this range with another that touches it; None for others, or if it were large."""
        begin, file, start, stop = following
        is_same = (begin, file) == (self.begin, self.file)
        touches = is_same and self.start <= start <= self.stop + BLOCK_BYTES
        both = self._replace(stop=max(stop, self.stop))
        return both if touches and both.stop - self.start <= FIRST_BLOCKS * BLOCK_BYTES else None

    def split(self) -> tuple[Hint, Hint | None]:
        """Return the first blocks of this range, and the rest if there is any."""
        cut = (self.start // BLOCK_BYTES + FIRST_BLOCKS) * BLOCK_BYTES
        if self.stop <= cut:
            return self, None
        return self._replace(stop=cut), self._replace(start=cut)


class Reader:
    """The position of a forward reader among the blocks that it reads.

    Attributes:
        ahead: the `ReadAhead` that counts it.
        file: the file.
        order: sorted indices of the blocks that it reads, as far as they are known.
        at: position in `order` of the next block.
        asked: position in `order` up to which blocks were fetched, or are being fetched.
        used: number of blocks read, older ones counted less.
        since: number of blocks read by all readers when `used` was 0.
    """

    __slots__ = ("ahead", "asked", "at", "file", "order", "since", "used")

    def __init__(self, ahead: ReadAhead, file: RangedFile, used: int, since: int) -> None:
        self.ahead, self.file = ahead, file
        self.order: Sequence[int] = ()
        self.at = self.asked = 0
        self.used, self.since = float(used), float(since)


class ReadAhead:
    """Fetch blocks ahead of all readers of a process.

    Args:
        fetch: fetches blocks [first, end) of a file.
        most_bytes: bytes that all readers together may hold ahead; 0 turns reading ahead off.
    """

    def __init__(self, fetch: Callable[[RangedFile, int, int], None], most_bytes: int) -> None:
        self._fetch = fetch
        self._most = most_bytes // BLOCK_BYTES
        self._lock = threading.Lock()
        self._hints: deque[Hint] = deque()
        # After the first blocks of hints; the oldest are dropped, since they are read by then.
        self._rests: deque[Hint] = deque(maxlen=_MOST_HINTS)
        # The reader that waited longest comes first.
        self._hungry: OrderedDict[Reader, None] = OrderedDict()
        self._held = 0  # blocks ahead of all readers
        self._clock = 0  # blocks read by all readers
        self._used, self._spent_s = 0.0, 0.05  # recent blocks, and seconds without waits for them
        self._now = time.monotonic()
        self._threads = 0
        self._idle = threading.Condition(self._lock)  # threads wait for work here
        self._waiting = 0

    def reader(self, file: RangedFile, used: int) -> Reader:
        """Return a reader that has read `used` blocks of a file."""
        return Reader(self, file, used, self._clock - used)

    def request_blocks(self, reader: Reader) -> int:
        """Return the number of blocks to fetch in one request for a reader."""
        if not self._most:
            return 1
        return min(max(self._share(reader) // 4, FIRST_BLOCKS), MOST_BLOCKS)

    def moved(
        self, reader: Reader, order: Sequence[int], at: int, fetched: int, waited_s: float
    ) -> None:
        """Record that a reader used a block.

        Args:
            reader: the reader.
            order, at: its `order` and `at` from now on.
            fetched: position in the order up to which it has fetched blocks itself.
            waited_s: seconds that it waited for the block.
        """
        with self._lock:
            self._clock += 1
            reader.used += 1
            if self._clock - reader.since > _MEASURED_BLOCKS:
                reader.used /= 2
                reader.since = (reader.since + self._clock) / 2
            now = time.monotonic()
            self._spent_s += max(now - self._now - waited_s, 0.0)
            self._now = now
            self._used += 1
            while self._spent_s > 2 * _MEASURED_S:
                self._used, self._spent_s = self._used / 2, self._spent_s / 2
            asked = max(reader.asked, fetched, at) if reader.at <= at <= reader.asked else at
            self._hold(reader, at, min(max(asked, fetched), len(order)))
            reader.order = order
            self._hungry.pop(reader, None)
            if self._wanted(reader):
                self._hungry[reader] = None
            self._start()

    def drop(self, reader: Reader) -> None:
        """Fetch nothing more ahead of a reader."""
        if _ends or reader.ahead is not self:  # of the parent of this process
            return
        with self._lock:
            self._hungry.pop(reader, None)
            self._hold(reader, 0, 0)

    def add_hint(self, hint: Hint) -> None:
        """Fetch a range in a thread unless too many are waiting; its errors are dropped."""
        with self._lock:
            if len(self._hints) < _MOST_HINTS:
                self._hints.append(hint)
                self._start()

    def _hold(self, reader: Reader, at: int, asked: int) -> None:
        self._held += (asked - at) - (reader.asked - reader.at)
        reader.at, reader.asked = at, asked

    def _room(self) -> int:
        """Return the number of blocks that all readers may hold ahead."""
        by_use = int(self._used / self._spent_s * _AHEAD_S)
        return min(max(by_use, _LEAST_AHEAD), self._most)

    def _share(self, reader: Reader) -> int:
        """Return the number of blocks that a reader may hold ahead."""
        share = reader.used / max(self._clock - reader.since, 1)
        by_use = FIRST_BLOCKS + 2 * int(reader.used)
        return min(int(_SHARES * share * self._room()), by_use)

    def _wanted(self, reader: Reader) -> int:
        """Return the number of blocks to fetch next for a reader; 0 waits for it to move on."""
        left = len(reader.order) - reader.asked
        most = self._share(reader)
        room = min(most - (reader.asked - reader.at), left)
        return room if room > 0 and (room == left or 2 * room >= min(most, MOST_BLOCKS)) else 0

    def _start(self) -> None:
        hinted = bool(self._hints or self._rests)
        work = hinted or (bool(self._hungry) and self._held < self._room())
        if work and self._waiting:
            self._idle.notify()
        elif work and self._threads < _THREADS and start_daemon(self._work, name=_NAME):
            self._threads += 1

    def _next(self) -> Callable[[], object] | None:
        return self._hinted(self._hints) or self._hungriest() or self._hinted(self._rests)

    def _hinted(self, hints: deque[Hint]) -> Callable[[], object] | None:
        if not hints:
            return None
        hint = hints.popleft()
        while hints and (both := hint.joined(hints[0])):
            hint = both
            hints.popleft()
        hint, rest = hint.split()
        if rest is not None:
            self._rests.append(rest)
        return hint.fetch

    def _hungriest(self) -> Callable[[], object] | None:
        while self._hungry and self._held < self._room():
            reader = next(iter(self._hungry))
            wanted = min(self._wanted(reader), self.request_blocks(reader))
            if not wanted:
                del self._hungry[reader]
                continue
            file, order, low = reader.file, reader.order, reader.asked
            high, stop = low + 1, order[low] + 1
            while high - low < wanted and order[high] == stop:
                high, stop = high + 1, stop + 1
            self._hold(reader, reader.at, high)
            first = order[low]
            return lambda: file.closed or self._fetch(file, first, stop)
        return None

    def _next_or_wait(self) -> Callable[[], object] | None:
        while (task := self._next()) is None:
            self._waiting += 1
            was_called = self._idle.wait(_IDLE_S)
            self._waiting -= 1
            if not was_called:
                return self._next()
        return task

    def _work(self) -> None:
        while True:
            with self._lock:
                task = self._next_or_wait()
                if task is None:
                    self._threads -= 1
                    return
                self._start()
            try:
                task()
            except Exception as error:  # the reader meets the error, after all its retries
                logger.debug("reading ahead failed: %s", error)
