"""PackedLoader: the batches of a rank, made ahead by worker processes, with exact state.

Its state is what the loop has taken, never what a worker has made ahead. Finite runs end on every
rank after the same step; see `streampack.job.ending`.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, Literal

import torch

from streampack.batch import BatchGroup, PackedBatch
from streampack.dataset import PackedDataset
from streampack.device.copies import DeviceCopies
from streampack.errors import ConfigError, StateError
from streampack.job.ending import End, Ending, Ranks
from streampack.job.exchange import check_same_start, connect
from streampack.metrics import Metrics
from streampack.numeric import real_number, whole_number
from streampack.run.state import RunState, batches_given
from streampack.workers.delivery import Delivery
from streampack.workers.feed import (
    WorkerSettings,
    feed_from_workers,
    feed_in_process,
    fill_gaps,
)

__all__ = ["PackedLoader"]


class PackedLoader:
    """Iterate a `PackedDataset` with worker processes.

    Iterating goes on where the loop stopped: after a ``break``, behind the last batch it got;
    after `load_state_dict`, behind the state; after the last epoch, at the beginning again. One
    iterator is live at a time: the next one, or `load_state_dict`, ends it. Several loaders may
    share a dataset; each starts from the dataset's state and keeps its own.

    A finite run ends on every data-parallel rank after the same step. With an initialised process
    group its processes agree on it; all of them iterate, and leave a loop early, if at all, after
    the same step. Without one, or where ranks are simulated, each ends when its own lanes are dry.

    Args:
        dataset: what to load.
        num_workers: worker processes; 0 makes batches in the loop's own process.
        prefetch_batches: batches each worker makes ahead.
        multiprocessing_context: "fork", "spawn" or "forkserver"; None is Python's default.
        pin_memory: give batches in page-locked memory, where there is a device to copy them to.
        timeout_s: raise if a worker gives nothing for so long; None waits as long as it lives.
        end: how a finite run ends. "drain" loses nothing: lanes that are dry before others give
            empty batches (padding only) until all are. "stop" leaves at the first rotation in
            which some lane has no batch, and counts what it leaves in `Metrics.left`.
        output: what iterating gives: a `PackedBatch`, or with "hf" the dictionary of its `.hf()`,
            for trainers that call ``model(**batch)``.
        device: copy batches there, the next one while the loop computes on the one at hand; None
            leaves them on the CPU.
        ranks: who agrees; None finds the job's processes (see `streampack.job.exchange`).

    Raises (while iterating):
        WorkerError: a worker was killed or timed out. The loader can be iterated again: it starts
            new workers behind the last batch the loop got.
        RankError: another rank died, or starts another run or from another place.
        StreampackError: whatever the source or a hook raised in a worker.
    """

    def __init__(
        self,
        dataset: PackedDataset,
        *,
        num_workers: int = 0,
        prefetch_batches: int = 4,
        multiprocessing_context: str | None = None,
        pin_memory: bool = False,
        timeout_s: float | None = None,
        end: End = "drain",
        output: Literal["batch", "hf"] = "batch",
        device: torch.device | str | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        workers = _settings(num_workers, prefetch_batches, multiprocessing_context, timeout_s)
        if end not in ("drain", "stop"):
            raise ConfigError(
                f"end is {end!r}.", "It says how a finite run ends.", 'Use "drain" or "stop".'
            )
        if output not in ("batch", "hf"):
            raise ConfigError(
                f"output is {output!r}.", "It says what the loop gets.", 'Use "batch" or "hf".'
            )
        self.dataset = dataset
        self.num_workers = workers.num_workers
        self._output = output
        self._copies: DeviceCopies[PackedBatch] | None = (
            None if device is None else DeviceCopies(device)
        )
        self._workers = workers
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._end = end
        self._ranks = ranks
        self._config = dataset.lane_config(max(self.num_workers, 1))
        self._run = dataset.start()
        self._finished = False
        self._live: Generator[Delivery, None, None] | None = None
        self._ahead: deque[Delivery] = deque()  # taken from it and not yet by the loop
        self._metrics = Metrics()

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state of what the loop has taken so far, the batch at hand included.

        Raises:
            StateError: of an evaluation on a number of ranks that does not divide the lanes.
        """
        self._run.require_own_lanes()
        return self._run.as_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Go on behind a saved state at the next iteration.

        Args:
            state, allow: see `PackedDataset.load_state_dict`.

        Raises:
            StateError: the state is of another run; the message names the field.
        """
        self._config, self._run = self.dataset.resume(state, allow=allow)
        self._finished = False
        self._stop()

    def metrics(self) -> Metrics:
        """Totals over the batches the loop has taken from this loader."""
        return self._metrics + Metrics()

    def __iter__(self) -> Iterator[Any]:
        with self._iterating() as deliveries:
            while True:
                began = time.perf_counter()
                if not self._await(deliveries, 1):
                    self._finished = True
                    return
                following = self._queue(deliveries, 2)[1:] if self._copies else []
                batch = self._take()
                if self._copies and following:
                    self._copies.start(following[0].batch)
                self._metrics.wait_s += time.perf_counter() - began
                yield batch.hf() if self._output == "hf" else batch

    def accumulate(self, batches: int) -> Iterator[BatchGroup]:
        """Iterate in groups of `batches`, for gradient accumulation.

        A group tells how many loss tokens its batches have on all data-parallel ranks together,
        and so do its batches (`PackedBatch.num_items_in_batch`); see `streampack.token_mean_loss`.
        That number is one sum over ranks, which travels while the group before is used. The last
        group of a finite run may be shorter, equally on all ranks. All batches of the group at
        hand count as taken.

        Args:
            batches: per group, equal on all ranks.

        Raises:
            ConfigError: `batches` is no whole number of at least one.
        """
        return self._groups(whole_number("batches", batches, "A step needs at least one."))

    def _groups(self, batches: int) -> Generator[BatchGroup, None, None]:
        ranks = self._connected()
        counted: Delivery | None = None
        count: Callable[[], int] | None = None
        with self._iterating() as deliveries:
            while True:
                began = time.perf_counter()
                group = self._queue(deliveries, batches)
                if not group:
                    self._finished = True
                    return
                if count is None or group[0] is not counted:  # the first one, or behind a `skip`
                    count = ranks.total(_loss_tokens(group))
                following = self._queue(deliveries, 2 * batches)[batches:]
                num_loss_tokens, count = count(), None
                if following:
                    counted, count = following[0], ranks.total(_loss_tokens(following))
                taken = [self._take() for _ in group]
                self._metrics.wait_s += time.perf_counter() - began
                yield BatchGroup(taken, num_loss_tokens)

    def skip(self, batches: int) -> int:
        """Step over the next `batches` batches of this rank, as after a spike in the loss.

        All ranks do it after the same step. The batches count as consumed: the state goes on
        behind them and records their numbers (``state["stepped_over"]``), and `Metrics` counts
        their tokens apart.

        Returns:
            How many there were: fewer than `batches` at the end of the run.

        Raises:
            ConfigError: `batches` is no whole number, or negative.
        """
        batches = whole_number("batches", batches, "So many cannot be skipped.", least=0)
        if self._finished:
            return 0
        live = self._live
        deliveries = live if live is not None else self._open()
        first, found = self._run.next_batch, 0
        while found < batches and self._await(deliveries, 1):
            self._take(stepped_over=True)
            found += 1
        self._run.step_over(first)
        if live is None:
            self._stop()
        return found

    # ------------------------------------------------------------------ one iterator at a time

    def _open(self) -> Generator[Delivery, None, None]:
        if self._finished:
            self._run = RunState.begin(self._run.fingerprint, self._run.topology)
            self._finished = False
        self._stop()
        self._live = self._deliveries()
        return self._live

    @contextmanager
    def _iterating(self) -> Iterator[Generator[Delivery, None, None]]:
        """The deliveries of one iterator, live until the loop leaves it."""
        deliveries = self._open()
        try:
            yield deliveries
        finally:
            if self._live is deliveries:
                self._stop()

    def _stop(self) -> None:
        """End the live iterator's workers, if there is one."""
        live, self._live = self._live, None
        self._ahead.clear()
        if live is not None:
            live.close()

    def _queue(self, deliveries: Generator[Delivery, None, None], count: int) -> list[Delivery]:
        """The next `count` deliveries, or fewer at the end of the run; they stay in the queue."""
        return list(islice(self._ahead, self._await(deliveries, count)))

    def _await(self, deliveries: Generator[Delivery, None, None], count: int) -> int:
        """How many of the next `count` deliveries there are; they wait in the queue."""
        if self._live is not deliveries:
            raise StateError(
                "The loader was iterated anew, or given a state, while this iterator was in use.",
                "Two iterators would share one place in the stream.",
                "Use one iterator at a time, or one loader for each.",
            )
        while len(self._ahead) < count:
            delivery = next(deliveries, None)
            if delivery is None:
                break
            self._ahead.append(delivery)
        return min(count, len(self._ahead))

    def _take(self, *, stepped_over: bool = False) -> PackedBatch:
        """The loop takes the first delivery of the queue, or steps over it."""
        batch, spent, state, _ = self._ahead.popleft()
        if spent is not None:
            self._metrics += spent
        if stepped_over:
            self._metrics.stepped_over += batch.composition
        else:
            self._metrics.batches += 1
            if batch.num_documents:
                self._metrics.composition += batch.composition
            else:
                self._metrics.empty_batches += 1
        if batch.num_documents == 0:
            state = self._run.lane(batch.lane)
        if not self._run.shares_lanes:
            self._run.commit(batch.lane, batch.step, state)
        if stepped_over:
            return batch
        if self._copies is not None:
            return self._copies.take(batch)
        return batch.pin_memory() if self._pin_memory else batch

    # ------------------------------------------------------------------ making them

    def _deliveries(self) -> Generator[Delivery, None, None]:
        run, config = self._run, self._config
        endless = config.epochs is None
        if not endless:
            check_same_start(self._connected(), run.next_batch, run.fingerprint)
        lanes = run.topology.lanes(run.next_batch, config.lanes)
        states = {lane: run.lane(lane) for lane in lanes}
        with closing(self._feed(states)) as feed:
            ending = Ending(
                feed,
                topology=run.topology,
                start=run.next_batch,
                lanes=config.lanes,
                given={lane: batches_given(state) for lane, state in states.items()},
                ranks=None if endless else self._connected(),
                end=self._end,
            )
            yield from fill_gaps(ending, config, run.lane)
            for left in ending.rest():
                self._metrics += left.metrics or Metrics()
                self._metrics.left += left.batch.composition

    def _feed(self, states: dict[int, Any]) -> Generator[Delivery, None, None]:
        lanes = list(states)
        if self.num_workers:
            return feed_from_workers(self._config, lanes, states, self._lane_ended, self._workers)
        return feed_in_process(self._config, lanes, states, self._lane_ended)

    def _lane_ended(self, lane: int, state: dict[str, Any], metrics: Metrics) -> None:
        """A lane has nothing at all; what it lost counts, and counts once."""
        self._metrics += metrics
        self._run.end(lane, state)

    def _connected(self) -> Ranks:
        if self._ranks is None:
            self._ranks = connect(self._run.topology)
        return self._ranks


def _settings(
    num_workers: int, prefetch_batches: int, start_method: str | None, timeout_s: float | None
) -> WorkerSettings:
    """How workers are run; raises `ConfigError` where they cannot be."""
    none = "There is no such number of processes or batches."
    methods = multiprocessing.get_all_start_methods()
    if start_method is not None and start_method not in methods:
        raise ConfigError(
            f"multiprocessing_context is {start_method!r}.",
            "Python cannot start worker processes that way here.",
            f"Use one of {', '.join(methods)}, or None (Python's default).",
        )
    if timeout_s is not None:
        timeout_s = real_number(
            "timeout_s",
            timeout_s,
            "No worker could be waited for so long.",
            least=0.001,
            most=threading.TIMEOUT_MAX,
            otherwise="or None (as long as the worker lives)",
        )
    return WorkerSettings(
        num_workers=whole_number("num_workers", num_workers, none, least=0),
        prefetch_batches=whole_number("prefetch_batches", prefetch_batches, none),
        context=multiprocessing.get_context(start_method),
        timeout_s=timeout_s,
    )


def _loss_tokens(deliveries: list[Delivery]) -> int:
    return sum(delivery.batch.num_loss_tokens for delivery in deliveries)
