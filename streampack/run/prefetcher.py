"""Prefetcher: fetch batches ahead of a loop."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from streampack.at_exit import at_exit
from streampack.batch import BatchGroup, Item, PackedBatch
from streampack.errors import StateError
from streampack.run.rank import RankRun

if TYPE_CHECKING:
    from streampack.forms.device_copies import DeviceCopies


class Prefetcher:
    """Batches of one iterator, fetched ahead of the loop; `run` counts the batches taken."""

    def __init__(
        self,
        run: RankRun,
        batches: Generator[PackedBatch, None, None],
        copies: DeviceCopies | None = None,
        pin_memory: bool = False,
    ) -> None:
        self._run = run
        self._given = batches
        self._copies = copies
        self._pin_memory = pin_memory
        self._got: deque[PackedBatch] = deque()
        # First batch of the step with its sum of loss tokens under way.
        self._asked: PackedBatch | None = None
        self._total: Callable[[], int] | None = None
        self._ended = False
        self.is_interrupted = False  # a later iteration continues at the same batch
        self.thread: threading.Thread | None = None  # thread that called last
        _not_ended.add(self)

    def get(self, count: int) -> list[PackedBatch]:
        """Return the next `count` batches without taking them, or fewer at the end of the run.

        Raises:
            StateError: another iterator has taken this one's place.
        """
        if self._ended:
            raise StateError(
                "The loader was iterated again, or given a state, while this iterator was in use.",
                "Use one iterator at a time, or one loader for each.",
            )
        self.thread = threading.current_thread()
        missing = count - len(self._got)
        if missing > 0:
            self._got.extend(islice(self._given, missing))
        return list(islice(self._got, count))

    def take(self) -> PackedBatch:
        """Take the first batch, on the device if there is one."""
        batch = self._got.popleft()
        self._run.take(batch)
        if self._copies is not None:
            return self._copies.take(batch)
        return batch.pin_memory() if self._pin_memory else batch

    def batches(self, form: Callable[[PackedBatch], Item], *, counted: bool) -> Iterator[Item]:
        """Yield the batches one by one, converted by `form`; each counts as taken.

        Args:
            form: converts a batch to the loop's item.
            counted: True if the batches that the ranks take together are a training step, so that
                their loss tokens are summed over ranks.
        """
        for (batch,), _ in self._steps(1, counted and self._run.num_ranks > 1):
            yield form(batch)

    def groups(self, size: int, form: Callable[[PackedBatch], Item]) -> Iterator[BatchGroup[Item]]:
        """Yield groups of `size` batches, the last possibly smaller; a group is taken whole."""
        for taken, num_loss_tokens in self._steps(size, True):
            yield BatchGroup(taken, num_loss_tokens, form)

    def _steps(self, size: int, counted: bool) -> Iterator[tuple[list[PackedBatch], int]]:
        """Yield the batches of every step, and their loss tokens on all ranks if counted.

        The sum over ranks starts a step ahead, so that it overlaps the model's computation.

        Raises:
            WorkerError: workers died and were restarted; no batch of the step is taken.
        """
        num_ranks = self._run.num_ranks
        looks_ahead = self._copies is not None or (counted and num_ranks > 1)
        while True:
            began = time.perf_counter()
            step = self.get(size)
            if not step:
                return
            if counted and step[0] is not self._asked:  # the first step, or the step after a `skip`
                self._ask_for(step)
            following = self.get(2 * size)[size:] if looks_ahead else []
            if (error := self._run.interruption()) is not None:
                self.is_interrupted = True
                raise error
            num_loss_tokens, self._total = 0 if self._total is None else self._total(), None
            if counted and following:
                self._ask_for(following)
            taken = [self.take() for _ in step]
            counts = [batch.num_loss_tokens for batch in taken]
            items: float = sum(counts)
            if counted:
                items = num_loss_tokens if num_ranks == 1 else num_loss_tokens / num_ranks
                for batch in taken:
                    batch.num_items_in_batch = items
                    batch._step_batches = len(taken)
                items *= taken[0].cp_size  # each rank counts a batch that it shares
            self._run.metrics.count_step(counts, items / len(counts))
            self._start_copy(following)
            self._run.metrics.wait_s += time.perf_counter() - began
            yield taken, num_loss_tokens

    def _ask_for(self, step: list[PackedBatch]) -> None:
        """Start the sum of a step's loss tokens over all ranks."""
        self._asked = step[0]
        self._total = self._run.ranks.total(_loss_tokens(step), self._run.place())

    def step_over(self) -> None:
        """Skip the first batch, which the loop does not use."""
        self._run.take(self._got.popleft(), stepped_over=True)

    def _start_copy(self, following: Sequence[PackedBatch]) -> None:
        """Begin to copy the first batch of `following` to the device, if both exist."""
        if self._copies is not None and following:
            self._copies.start(following[0])

    def continue_from(self, batches: Generator[PackedBatch, None, None]) -> None:
        """Replace the batches that the loop has not taken yet."""
        self._given.close()
        self._given = batches
        self._got.clear()

    def end(self) -> None:
        """Stop the iterator, and close the feed of batches."""
        self._ended = True
        if self in (_not_ended or ()):  # it is None once Python has taken modules apart
            _not_ended.discard(self)
            self._given.close()


def _loss_tokens(batches: Sequence[PackedBatch]) -> int:
    # Only one of the ranks that share a batch counts it.
    return sum(batch.num_loss_tokens for batch in batches if not batch.cp_rank)


_not_ended: weakref.WeakSet[Prefetcher] = weakref.WeakSet()


def _leave_all() -> None:
    """Leave the iterators of the parent to it: a child that drops or ends one closes nothing."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object([*_not_ended]))  # so that none is finalized
    _not_ended.clear()


def _end_all() -> None:
    """Close iterators left open by a script, while the modules that end workers still exist."""
    for prefetcher in list(_not_ended):
        with suppress(ValueError):  # another thread is executing the generator
            prefetcher.end()


os.register_at_fork(after_in_child=_leave_all)
at_exit("loops", _end_all)
