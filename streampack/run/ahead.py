"""Ahead: batches that a loop's iterator has got and the loop has not taken yet."""

from __future__ import annotations

import atexit
import os
import weakref
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from itertools import islice

from streampack.batch import PackedBatch
from streampack.errors import StateError
from streampack.run.copies import DeviceCopies
from streampack.run.rank import RankRun


class Ahead:
    """One iterator's batches, asked for before the loop takes them.

    Args:
        run: what counts the batches that are taken.
        batches: that rank's, in order.
        copies: bring batches to a device; None leaves them where they are.
        pin_memory: give them in page-locked memory.
    """

    def __init__(
        self,
        run: RankRun,
        batches: Generator[PackedBatch, None, None],
        copies: DeviceCopies | None = None,
        pin_memory: bool = False,
    ) -> None:
        self._run = run
        self._batches = batches
        self._copies = copies
        self._pin_memory = pin_memory
        self._got: deque[PackedBatch] = deque()
        self._ended = False
        self._process = os.getpid()
        _not_ended.add(self)

    def get(self, count: int) -> list[PackedBatch]:
        """The next `count` batches, or fewer at the end of the run; none is taken.

        Raises:
            StateError: another iterator has taken this one's place.
        """
        if self._ended:
            raise StateError(
                "The loader was iterated again, or given a state, while this iterator was in use.",
                "Two iterators would share one place in the stream.",
                "Use one iterator at a time, or one loader for each.",
            )
        self._got.extend(islice(self._batches, max(0, count - len(self._got))))
        return list(islice(self._got, count))

    def take(self) -> PackedBatch:
        """The loop takes the first batch, on the device if there is one."""
        batch = self._got.popleft()
        self._run.take(batch)
        if self._copies is not None:
            return self._copies.take(batch)
        return batch.pin_memory() if self._pin_memory else batch

    def step_over(self) -> None:
        """The loop leaves the first batch out."""
        self._run.take(self._got.popleft(), stepped_over=True)

    def start_copy(self, following: Sequence[PackedBatch]) -> None:
        """Begin to copy the first of the batches that follow to the device, if there are both."""
        if self._copies is not None and following:
            self._copies.start(following[0])

    def end(self) -> None:
        """Give nothing more, and end what makes the batches."""
        if not self._ended:
            self._ended = True
            _not_ended.discard(self)
            self._batches.close()


_not_ended: weakref.WeakSet[Ahead] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End iterators that a script leaves open, while modules that end workers are still there."""
    for ahead in list(_not_ended):
        if ahead._process == os.getpid():  # not in a child that was forked
            with suppress(ValueError):  # another thread is in it
                ahead.end()
