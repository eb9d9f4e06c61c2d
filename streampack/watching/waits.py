"""Waits: a loop's waits for batches, by stage and by rank."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import sub
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from streampack import metrics
from streampack.errors import RankError
from streampack.job.connect import connect
from streampack.job.ending import Alone, Ranks
from streampack.job.topology import Topology
from streampack.loader import PackedLoader
from streampack.metrics import LaneTimes, Metrics
from streampack.watching.clock import ready_s
from streampack.watching.figures import JobWaits, RankWaits
from streampack.watching.stalls import Stalls
from streampack.watching.timed_ranks import TimedRanks

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

Item = TypeVar("Item")


class Totals(NamedTuple):
    """Totals at a moment: the time of a clock, and the seconds of each kind up to then."""

    at_s: float
    wait_s: float
    exposed_s: float
    ranks_s: float
    loader_s: float  # waits that the loader itself counts
    times: LaneTimes


class Waits(Generic[Item]):
    """Measure how long a loop waits for its loader, for which stage, and on which rank.

    Example:
        >>> from streampack import PackedDataset, PackedLoader, Waits
        >>> loader = PackedLoader(PackedDataset([[1, 2, 3]] * 100, seq_len=8, batch_size=2))
        >>> waits = Waits(loader)
        >>> for batch in waits:  # instead of loader
        ...     pass
        >>> report = waits.report()
        >>> report.limit in ("step", *report.occupancy)
        True

    The loop gets the loader's items unchanged. The first item of a loop, which waits for processes
    to start, is not counted. Stages are timed per block of documents and per batch; workers report
    theirs with their batches. A process with a `Waits`, and its workers, count the time in which
    they are ready and wait for a processor as decoding, not as reading from storage.

    Args:
        loader: a `PackedLoader`; or any iterable, of which only the waits are measured.
        over: iterable to follow instead, for example ``loader.accumulate(4)``; None is the loader.
        meter: a Meter of OpenTelemetry. It gets a histogram of waits, gauges of occupancy, and
            counters of tokens, documents and fetched bytes, each with the attribute `rank`.
    """

    @overload
    def __init__(
        self, loader: Iterable[Item], over: None = None, *, meter: Meter | None = None
    ) -> None: ...

    @overload
    def __init__(
        self, loader: Iterable[Any], over: Iterable[Item], *, meter: Meter | None = None
    ) -> None: ...

    def __init__(
        self,
        loader: Iterable[Any],
        over: Iterable[Any] | None = None,
        *,
        meter: Meter | None = None,
    ) -> None:
        self._items: Iterable[Any] = loader if over is None else over
        self.loader = loader if isinstance(loader, PackedLoader) else None
        self._ranks: TimedRanks | None = None
        self._stalls = Stalls()
        self._waits = array("d")  # of the steps since the last report
        self._wait_s = 0.0
        self._record: Callable[[float], None] | None = None
        if self.loader is not None:
            metrics.thread_clock = ready_s
        if meter is not None:
            from streampack.watching.export import exported

            self._record = exported(self, meter)
        self._last = self.mark()

    def __iter__(self) -> Iterator[Item]:
        """Yield the loader's items, and measure how long the loop waits for each."""
        self._time_ranks()
        items = iter(self._items)
        for item in items:
            self._begin()
            yield item
            break
        while True:
            self._stalls.begin()
            began = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            wait_s = time.perf_counter() - began
            self._stalls.end(wait_s)
            self._wait_s += wait_s
            self._waits.append(wait_s)
            if self._record is not None:
                self._record(wait_s)
            yield item

    @property
    def topology(self) -> Topology:
        """This process's data-parallel rank, and the number of ranks."""
        return Topology.detect() if self.loader is None else self.loader._run.plan.ranks

    def report(self) -> RankWaits:
        """Return the figures of this rank since the last report, or since the first batch."""
        self._stalls.collect()
        report = self.between(self._last, self.mark(), self._waits)
        self._begin()
        return report

    def over_ranks(self) -> JobWaits:
        """Return the figures of every rank, each since its last report.

        It is a collective: all ranks must call it after the same step.

        Raises:
            RankError: the ranks are not connected, or another rank died.
        """
        row, topology, ranks = self.report().as_row(), self.topology, self._connected()
        if topology.world_size > 1 and isinstance(ranks, Alone):
            raise RankError(
                f"The figures of {topology.world_size} ranks need a connection between them, and "
                "torch.distributed is not initialised.",
                "Call torch.distributed.init_process_group() before the loop; or use report().",
            )
        table = np.full((topology.world_size, len(row)), -np.inf, dtype=np.float32)
        table[topology.rank] = row
        return JobWaits(tuple(map(RankWaits.of_row, ranks.highest(table)())))

    def mark(self) -> Totals:
        """Return the totals up to now."""
        totals = Metrics() if self.loader is None else self.loader._run.metrics
        ranks_s = 0.0 if self._ranks is None else self._ranks.waited_s
        return Totals(
            time.perf_counter(),
            self._wait_s,
            self._stalls.exposed_s,
            ranks_s,
            totals.wait_s,
            totals.times + LaneTimes(),
        )

    def between(self, before: Totals, after: Totals, waits: Sequence[float] = ()) -> RankWaits:
        """Return the figures between two marks, with the quantiles of `waits`."""
        workers = -1
        if self.loader is not None:
            workers = min(self.loader.num_workers, len(self.loader._run.lanes()))
        at_s, wait_s, exposed_s, ranks_s, loader_s = map(sub, after[:5], before[:5])
        p50_s, p95_s, p99_s = np.quantile(waits or (0.0,), (0.5, 0.95, 0.99)).tolist()
        return RankWaits(
            rank=self.topology.rank,
            steps=len(waits),
            seconds=at_s,
            wait_s=wait_s,
            exposed_s=exposed_s,
            ranks_s=ranks_s,
            transform_s=wait_s - loader_s,
            p50_s=p50_s,
            p95_s=p95_s,
            p99_s=p99_s,
            workers=workers,
            times=after.times - before.times,
        )

    def _begin(self) -> None:
        self._last = self.mark()
        del self._waits[:]

    def _connected(self) -> Ranks:
        if self._ranks is not None:
            return self._ranks.ranks
        return connect(self.topology) if self.loader is None else self.loader._run.ranks

    def _time_ranks(self) -> None:
        """Let the loader's run count how long it waits for other ranks."""
        if self.loader is None or isinstance(self.loader._run.ranks, Alone):
            return
        ranks = self.loader._run.ranks
        self._ranks = ranks if isinstance(ranks, TimedRanks) else TimedRanks(ranks)
        self.loader._run._ranks = self._ranks
