"""Bytes that a process fetches before its readers ask for them.

A reader declares the ranges that it will come to once, in its order: a plan. Threads fetch along
all plans, next from the plan with the fewest blocks ahead of its reader; if no reader needs more,
from the first plan with a reader still to come. A plan may be ahead by `FIRST_BLOCKS`, or by twice
as much as its reader has read; all plans together by a limit, and by half of it for readers still
to come. So the order of requests depends on no clock. A wrong plan costs its bytes once: blocks
that its reader has passed no longer count.

Only the number of bytes under way is measured: three times as many as come in the time of a request
alone, a third of a second at most, so that a reader that waits for a block is not behind a longer
queue.

Threads start when there is work, and end half a second after there is none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from streampack.keep_last import KeepLast
from streampack.storage.blocks import BLOCK_BYTES, EXTENT_BLOCKS, extent_end
from streampack.threads import LOOK_S, Pulse, end_with_process, pulse, start_daemon

if TYPE_CHECKING:
    from streampack.storage.ranged_file import RangedFile

logger = logging.getLogger(__name__)

#: Blocks ahead of a reader that has read nothing.
FIRST_BLOCKS = 4
_LATER_BLOCKS = 32  # ahead of a reader that has not begun

_THREADS = 16
_IDLE_S = 0.5  # starting a thread takes as long as reading a block that is there
_FIRST_WINDOW, _LEAST_WINDOW, _MOST_WINDOW = 8, 16, 256  # blocks under way
_ENOUGH = 3  # blocks under way over blocks that come in the time of a request
_LONGEST_DELAY_S = 1 / _ENOUGH  # a reader waits for a second of the line at most
_OLDER = 1.05  # by which the shortest time of a request grows with each window, as it may be over
_SLOWER = 0.8  # by which the highest rate falls with each window
_SLACK = 32  # blocks by which a reader may leave the order of its plan
_MOST_PLANS = 4096
_MOST_TASKS = 256  # a later one would be called after its readers
_MOST_READ = 256  # blocks read last: a plan that comes to them is behind its reader

Block = tuple[str, int]  # key of a file, number of its block


class Plan:
    """The ranges that a reader will come to.

    Attributes:
        ranges: the ranges that are not begun; a fetching thread takes them.
        file, first, end: file and blocks [first, end) of the range that is begun.
        ahead: blocks that are there or under way and not read yet, with their place in the order.
        passed: number of blocks so far in the order; read: number of them that were read.
        is_busy: True while a thread takes the next range; is_over: True after the last one.
        number: 0 for a reader that has begun; otherwise plans are fetched by this order.
    """

    __slots__ = (
        "ahead", "end", "file", "first", "is_busy", "is_over", "number", "passed", "ranges", "read",
    )  # fmt: skip

    def __init__(self, ranges: Iterator[tuple[RangedFile, int, int]], number: int) -> None:
        self.ranges, self.number = ranges, number
        self.file: RangedFile | None = None
        self.first = self.end = self.passed = self.read = 0
        self.ahead: dict[Block, int] = {}
        self.is_busy = self.is_over = False

    def room(self, held_back: int) -> int:
        """Return the number of blocks to fetch next; 0 waits for the reader to move on."""
        if self.is_busy or self.is_over:
            return 0
        most = max(_LATER_BLOCKS if self.number else FIRST_BLOCKS, 2 * self.read)
        if held_back:
            most = 1 if self.number else FIRST_BLOCKS
        room = max(most - len(self.ahead), 0)
        return room if not self.read or 2 * room >= min(most, EXTENT_BLOCKS) else 0


class Plans:
    """Fetch blocks along the plans of all readers of a process.

    Args:
        fetch: fetches those of the blocks [first, end) of a file that are missing; returns False
            if none are.
        most_bytes: bytes that all plans together may be ahead; 0 turns reading ahead off.

    Attributes:
        held_back: before a first batch, the number of blocks that all may be ahead together where
            readers have not begun, one of each; others may be by `FIRST_BLOCKS`. 0 afterwards.
    """

    def __init__(self, fetch: Callable[[RangedFile, int, int], bool], most_bytes: int) -> None:
        self._fetch, self._most = fetch, most_bytes // BLOCK_BYTES
        self._lock = threading.Lock()
        self._wake, self._done = threading.Condition(self._lock), threading.Condition(self._lock)
        self._plans: dict[Hashable, Plan] = {}
        self._hungry: dict[Plan, None] = {}  # with room
        self._later: dict[Plan, None] = {}  # with room, of readers that have not begun
        self._numbers = count(1)
        self._ahead: dict[Block, Plan] = {}  # of all plans
        self._read: KeepLast[Block, bool] = KeepLast(_MOST_READ)
        self._busy: dict[Block, Pulse] = {}  # on their way to this process, by a thread
        self._tasks: deque[Callable[[], object]] = deque()
        # Keys of readers that have ended: the garbage collector may end one at any place, and the
        # interpreter after the threads, so neither must need the lock.
        self._dropped: deque[Hashable] = deque()
        self._window = Window()
        self.held_back = 0
        self._threads = self._idle = 0
        self._thread = threading.local()

    def plan(
        self, key: Hashable, ranges: Iterable[tuple[RangedFile, int, int]], *, later: bool = False
    ) -> None:
        """Fetch the ranges of a reader, a file and its bytes [start, stop) each, in this order.

        A key has one plan. `ranges` is run in threads, and must not call pyarrow, which would end
        the process if it were in there at its end.

        Args:
            key: key of the reader.
            ranges: its ranges; left unused if the key has a plan.
            later: True if the reader begins later, with this key. Such plans are fetched in their
                order, when no reader that has begun needs more.
        """
        with self._lock:
            self._forget()
            plan = self._plans.get(key)
            if plan is None and self._most:
                plan = Plan(iter(ranges), next(self._numbers))
                self._plans[key] = plan
                if len(self._plans) > _MOST_PLANS:
                    self._dropped.append(next(iter(self._plans)))
            if plan is not None:
                if not later:
                    plan.number = 0
                    self._later.pop(plan, None)
                self._look(plan)

    def drop(self, key: Hashable) -> None:
        """Fetch nothing more by a plan."""
        self._dropped.append(key)

    def go_on(self) -> None:
        """Be held back no longer."""
        with self._lock:
            self.held_back = 0
            for plan in self._plans.values():
                self._look(plan)

    def soon(self, task: Callable[[], object]) -> None:
        """Call a function in a thread unless too many are waiting; its errors are dropped."""
        with self._lock:
            if len(self._tasks) < _MOST_TASKS:
                self._tasks.append(task)
                self._start()

    @property
    def is_ahead(self) -> bool:
        """True in threads that fetch ahead, which repeat nothing that fails."""
        return hasattr(self._thread, "is_ahead")

    def used(self, key: str, number: int) -> None:
        """Record that a reader has used a block."""
        with self._lock:
            self._forget()
            self._read.keep((key, number), lambda: True)
            plan = self._ahead.get((key, number))
            if plan is not None:
                place = plan.ahead[key, number]
                while plan.ahead[first := next(iter(plan.ahead))] < place - _SLACK:
                    self._uncount(first)
                self._uncount((key, number))
                plan.read += 1
                self._look(plan)
            elif self._ahead and len(self._ahead) >= self._most:
                # The oldest may be of a reader that has stopped.
                self._look(self._uncount(next(iter(self._ahead))))
            self._start()

    def claim(self, key: str, number: int, end: int, wait_s: float) -> int:
        """Wait until no thread of this process fetches a block, and claim it and those after it.

        Blocks behind `end` are claimed too if a plan has come to them: fetching them has failed.

        Returns:
            The end of the claimed blocks, of one extent; `number` if another thread gets nothing
            for `wait_s`.
        """
        with self._lock:
            if (key, number) not in self._ahead:
                self._pass_over(key, number)
            while (other := self._busy.get((key, number))) is not None:
                if time.monotonic() - other.last_s >= wait_s:
                    return number
                self._done.wait(LOOK_S)
                end_with_process()
            for block in range(number, extent_end(number)):
                if (key, block) in self._busy or (block >= end and (key, block) not in self._ahead):
                    return block
                self._claim((key, block))
            return extent_end(number)

    def release(self, key: str, number: int, stop: int) -> None:
        """Give up claimed blocks, fetched or not."""
        with self._lock:
            for block in range(number, stop):
                self._busy.pop((key, block), None)
            self._done.notify_all()

    def _claim(self, block: Block) -> None:
        self._busy[block] = pulse()
        pulse().beat()

    def _pass_over(self, key: str, number: int) -> None:
        """Let a plan go on where its reader is, which has left out a part of it."""
        for plan in self._plans.values():
            is_far = plan.first + _SLACK < number < plan.end
            if is_far and plan.file is not None and plan.file.key == key:
                for block in [*plan.ahead]:
                    self._uncount(block)
                plan.first = number
                self._look(plan)

    def _forget(self) -> None:
        while self._dropped:
            plan = self._plans.pop(self._dropped.popleft(), None)
            if plan is not None:
                plan.is_over = True
                for block in [*plan.ahead]:
                    self._uncount(block)
                self._hungry.pop(plan, None)
                self._later.pop(plan, None)

    def _uncount(self, block: Block) -> Plan:
        plan = self._ahead.pop(block)
        del plan.ahead[block]
        return plan

    def _look(self, plan: Plan) -> None:
        """Note whether a plan has room."""
        hungry = self._later if plan.number else self._hungry
        if plan.room(self.held_back):
            hungry[plan] = None
            self._start()
        else:
            hungry.pop(plan, None)

    def _start(self) -> None:
        if not self._has_work():
            return
        if self._idle:
            self._wake.notify()
        elif self._threads < _THREADS and start_daemon(self._work, name="streampack-read-ahead"):
            self._threads += 1

    def _has_work(self) -> bool:
        if self._tasks:
            return True
        later = self.held_back or self._most // 2
        most = self._most if self._hungry else later if self._later else 0
        return len(self._ahead) < most and self._window.has_room()

    def _next(self) -> Callable[[], object] | None:
        self._forget()
        if self._tasks:
            return self._tasks.popleft()
        while self._has_work():
            # Furthest behind its reader, else the first to come.
            plan = min(self._hungry or self._later, key=lambda each: (each.number, len(each.ahead)))
            if plan.first == plan.end:
                plan.is_busy = True
                self._look(plan)
                return partial(self._advance, plan)
            file, first, stop = self._count(plan)
            self._look(plan)
            if first < stop:
                self._window.begin(stop - first)
                return partial(self._fetched, file, first, stop, time.monotonic())
        return None

    def _count(self, plan: Plan) -> tuple[RangedFile, int, int]:
        """Claim the next blocks of a plan, which are ahead from now on."""
        file = plan.file
        assert file is not None
        while plan.first < plan.end and not self._is_free(block := (file.key, plan.first)):
            plan.read += block in self._read  # its reader was faster
            if block in self._busy and block not in self._ahead:  # or is about to be
                self._own(plan, block)
            plan.first += 1
        first = plan.first
        is_waited_for = plan.number < 2 and not (plan.ahead or plan.read)
        size = 1 if is_waited_for else min(plan.room(self.held_back), self._window.request())
        while plan.first < min(plan.end, first + size, extent_end(first)):
            block = file.key, plan.first
            if not self._is_free(block):
                break
            self._claim(block)
            self._own(plan, block)
            plan.first += 1
        return file, first, plan.first

    def _own(self, plan: Plan, block: Block) -> None:
        self._ahead[block], plan.ahead[block] = plan, plan.passed
        plan.passed += 1

    def _is_free(self, block: Block) -> bool:
        return not (block in self._ahead or block in self._busy or block in self._read)

    def _fetched(self, file: RangedFile, first: int, stop: int, began_s: float) -> None:
        asked = True
        try:
            asked = self._fetch(file, first, stop)
        finally:
            self.release(file.key, first, stop)
            with self._lock:
                self._window.end(stop - first, time.monotonic() - began_s if asked else None)
                self._start()

    def _advance(self, plan: Plan) -> None:
        """Take the next range of a plan, which may read a footer."""
        following = None
        try:
            following = next(plan.ranges, None)
        finally:
            with self._lock:
                plan.is_busy = False
                if following is None:
                    plan.is_over = True
                else:
                    plan.file, start, stop = following
                    stop = min(stop, plan.file.num_bytes)
                    plan.first = min(start, stop) // BLOCK_BYTES
                    plan.end = max(-(-stop // BLOCK_BYTES), plan.first)
                self._look(plan)

    def _next_or_wait(self) -> Callable[[], object] | None:
        while (task := self._next()) is None:
            self._idle += 1
            was_called = self._wake.wait(_IDLE_S)
            self._idle -= 1
            if not was_called:
                return self._next()
        return task

    def _work(self) -> None:
        self._thread.is_ahead = True
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


class Window:
    """The blocks under way, and the number that there may be.

    These are the highest rate and the shortest time of a request, as TCP's BBR has them (Cardwell
    et al., 2016), but a request that waits for others is never told from one that is far away: the
    estimates grow old, and the time has a limit.
    """

    def __init__(self) -> None:
        self._blocks, self._under_way = _FIRST_WINDOW, 0
        self._since, self._arrived = 0.0, 0
        self._was_full = False
        self._rate, self._delay_s = 0.0, _LONGEST_DELAY_S

    def has_room(self) -> bool:
        """Return True if more blocks may be asked for."""
        is_full = self._under_way >= self._blocks
        self._was_full |= is_full
        return not is_full

    def request(self) -> int:
        """Return the number of blocks to ask for at a time."""
        return max(self._blocks // 4, FIRST_BLOCKS - 1)

    def begin(self, blocks: int) -> None:
        """Count blocks that are asked for."""
        if not self._under_way:
            self._since, self._arrived = time.monotonic(), 0
        self._under_way += blocks

    def end(self, blocks: int, took_s: float | None) -> None:
        """Count blocks that have come, or failed, after some seconds; None if all were there."""
        self._under_way -= blocks
        self._arrived += blocks
        if took_s is not None:
            self._delay_s = min(self._delay_s, took_s)
        if self._arrived >= (2 if self._rate else 1) * self._blocks:
            now = time.monotonic()
            if self._was_full:
                self._adapt(self._arrived / max(now - self._since, 1e-9))
            self._since, self._arrived, self._was_full = now, 0, False

    def _adapt(self, rate: float) -> None:
        self._rate = max(rate, _SLOWER * self._rate)
        enough = int(_ENOUGH * self._rate * self._delay_s)
        self._blocks = min(max(enough, _LEAST_WINDOW), 2 * self._blocks, _MOST_WINDOW)
        self._delay_s = min(_OLDER * self._delay_s, _LONGEST_DELAY_S)
