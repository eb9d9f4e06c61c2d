"""Prefetcher: batches that a loop has got or takes, on their way to its device."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from itertools import islice

import torch

from streampack.batch import BatchGroup, Item, PackedBatch
from streampack.errors import StateError
from streampack.run.rank import RankRun


class DeviceCopies:
    """Copies batches to a device, the next one ahead of time.

    On a CUDA device the copy goes from a page-locked buffer on a separate stream, and the loop's
    stream waits for it there; the host never waits.

    Args:
        device: where the batches go.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.empty(0, device=device).device
        cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if cuda else None  # type: ignore[no-untyped-call]
        self._started: tuple[PackedBatch, PackedBatch] | None = None

    def start(self, batch: PackedBatch) -> None:
        """Begin to copy a batch; `take` will ask for it."""
        if self._started is None or self._started[0] is not batch:
            self._started = (batch, self._copy(batch))

    def take(self, batch: PackedBatch) -> PackedBatch:
        """The batch on the device, for work on the current stream."""
        self.start(batch)
        assert self._started is not None
        (_, copied), self._started = self._started, None
        if self._stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._stream)
            copied.record_stream(current)
        return copied

    def _copy(self, batch: PackedBatch) -> PackedBatch:
        if self._stream is None:
            return batch.to(self.device)
        with torch.cuda.stream(self._stream):
            return batch.pin_memory().to(self.device, non_blocking=True)


class Prefetcher:
    """One iterator's batches, asked for before the loop takes them; `run` counts those taken."""

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
        self._asked: PackedBatch | None = (
            None  # the first of those with their loss tokens asked for
        )
        self._total: Callable[[], int] | None = None
        self._ended = False
        self.is_interrupted = False  # and goes on where it was when it is iterated again
        self._process = os.getpid()
        self.thread: threading.Thread | None = None  # that asked last
        _not_ended.add(self)

    def get(self, count: int) -> list[PackedBatch]:
        """The next `count` batches, or fewer at the end of the run; none is taken.

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
        """The loop takes the first batch, on the device if there is one."""
        batch = self._got.popleft()
        self._run.take(batch)
        if self._copies is not None:
            return self._copies.take(batch)
        return batch.pin_memory() if self._pin_memory else batch

    def batches(self, form: Callable[[PackedBatch], Item], *, counted: bool) -> Iterator[Item]:
        """One after the other, in that form; each counts as taken.

        Args:
            form: what the loop gets of each.
            counted: whether the batches that the ranks take together are a step of training.
        """
        for (batch,), _ in self._steps(1, counted and self._run.num_ranks > 1):
            yield form(batch)

    def groups(self, size: int, form: Callable[[PackedBatch], Item]) -> Iterator[BatchGroup[Item]]:
        """In groups, the last one of what is left; all batches of a group count as taken."""
        for taken, num_loss_tokens in self._steps(size, True):
            yield BatchGroup(taken, num_loss_tokens, form)

    def _steps(self, size: int, counted: bool) -> Iterator[tuple[list[PackedBatch], int]]:
        """The batches of every step, and their loss tokens on all ranks if they are counted.

        The sum over ranks is asked for a step ahead, so it travels while the model computes.

        Raises:
            WorkerError: workers had died and were started again; nothing of the step is taken.
        """
        num_ranks = self._run.num_ranks
        looks_ahead = self._copies is not None or (counted and num_ranks > 1)
        while True:
            began = time.perf_counter()
            step = self.get(size)
            if not step:
                return
            if counted and step[0] is not self._asked:  # the first one, or after a `skip`
                self._ask_for(step)
            following = self.get(2 * size)[size:] if looks_ahead else []
            if (error := self._run.interruption()) is not None:
                self.is_interrupted = True
                raise error
            num_loss_tokens, self._total = 0 if self._total is None else self._total(), None
            if counted and following:
                self._ask_for(following)
            taken = [self.take() for _ in step]
            if counted:
                for batch in taken:
                    batch.num_items_in_batch = (
                        num_loss_tokens if num_ranks == 1 else num_loss_tokens / num_ranks
                    )
            self._start_copy(following)
            self._run.metrics.wait_s += time.perf_counter() - began
            yield taken, num_loss_tokens

    def _ask_for(self, step: list[PackedBatch]) -> None:
        """Ask for the loss tokens of a step on all ranks."""
        self._asked = step[0]
        self._total = self._run.ranks.total(_loss_tokens(step), self._run.place())

    def step_over(self) -> None:
        """The loop leaves the first batch out."""
        self._run.take(self._got.popleft(), stepped_over=True)

    def _start_copy(self, following: Sequence[PackedBatch]) -> None:
        """Begin to copy the first of the batches that follow to the device, if there are both."""
        if self._copies is not None and following:
            self._copies.start(following[0])

    def go_on(self, batches: Generator[PackedBatch, None, None]) -> None:
        """Give these instead of what the loop has not taken."""
        self._given.close()
        self._given = batches
        self._got.clear()

    def end(self) -> None:
        """Give nothing more, and end what makes the batches."""
        if not self._ended:
            self._ended = True
            _not_ended.discard(self)
            self._given.close()


def _loss_tokens(batches: Sequence[PackedBatch]) -> int:
    # Of ranks that share a batch, one counts it.
    return sum(batch.num_loss_tokens for batch in batches if not batch.cp_rank)


_not_ended: weakref.WeakSet[Prefetcher] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End iterators that a script leaves open, while modules that end workers are still there."""
    for ahead in list(_not_ended):
        if ahead._process == os.getpid():  # not in a child that was forked
            with suppress(ValueError):  # another thread is in it
                ahead.end()
