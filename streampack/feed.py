"""Feeds: a rank's batches as its lanes give them, made in the loop's process or by workers.

Each worker runs some of the lanes and sends their batches in rotation; the feed asks the worker
that owns the next lane, so the order is the same for any number of workers, none included.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from streampack.batch import PackedBatch
from streampack.ending import Gap
from streampack.lane import LaneConfig, LaneEnd, warm_up
from streampack.metrics import Metrics
from streampack.padding import padding_rows
from streampack.rotation import rotate
from streampack.worker import Dry
from streampack.worker_handle import WorkerHandle

__all__ = ["Delivery", "WorkerSettings", "feed_from_workers", "feed_in_process", "fill_gaps"]

LaneState = dict[str, Any] | None
#: Told of a lane that has no batch at all: its number, its state, and what it lost or spent.
OnEnd = Callable[[int, dict[str, Any], Metrics], None]


class Delivery(NamedTuple):
    """A batch on its way to the loop.

    Attributes:
        batch: as the loop gets it.
        metrics: what was lost or spent since the lane's batch before; None if nothing.
        state: the lane's, once the loop has taken the batch.
        dtype: of its token ids as they travel.
    """

    batch: PackedBatch
    metrics: Metrics | None
    state: LaneState | Callable[[], LaneState]
    dtype: np.dtype[Any]

    @property
    def lane(self) -> int:
        """The batch's lane."""
        return self.batch.lane

    @property
    def step(self) -> int:
        """The batch's number in its lane."""
        return self.batch.step

    @property
    def has_next(self) -> bool:
        """Whether its lane has another one."""
        return self.batch.has_next


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How worker processes are run; see `PackedLoader`."""

    num_workers: int
    prefetch_batches: int
    context: Any
    timeout_s: float | None


def feed_in_process(
    config: LaneConfig, lanes: Sequence[int], states: Mapping[int, LaneState], on_end: OnEnd
) -> Generator[Delivery, None, None]:
    """The batches of these lanes in rotation, made where they are asked for."""
    for lane, made in rotate(config, lanes, states):
        if isinstance(made, LaneEnd):
            on_end(lane, made.round.state(made.emitted), made.metrics)
            continue
        state = partial(made.round.state, made.emitted)
        batch = PackedBatch(
            made.rows, lane=lane, step=made.step, has_next=made.has_next, state=state
        )
        yield Delivery(batch, made.metrics, state, made.rows.tokens.dtype)


def feed_from_workers(
    config: LaneConfig,
    lanes: Sequence[int],
    states: Mapping[int, LaneState],
    on_end: OnEnd,
    settings: WorkerSettings,
) -> Generator[Delivery, None, None]:
    """The same from worker processes, which live as long as this generator."""
    warm_up(config)
    workers: list[WorkerHandle] = []
    rounds: dict[int, dict[str, Any]] = {}
    try:
        count = min(settings.num_workers, len(lanes))
        for number in range(count):
            own = lanes[number::count]
            workers.append(
                WorkerHandle(
                    settings.context,
                    number,
                    config,
                    list(own),
                    {lane: states[lane] for lane in own},
                    settings.prefetch_batches,
                    [worker.receiver for worker in workers],
                )
            )
        running = {lane: workers[i % count] for i, lane in enumerate(lanes)}
        while running:
            for lane in list(running):
                message = running[lane].receive(settings.timeout_s)
                assert message.lane == lane, "a worker's lanes rotate as the loader's do"
                if isinstance(message, Dry):
                    del running[lane]
                    on_end(lane, message.state, message.metrics)
                    continue
                if not message.has_next:
                    del running[lane]
                if message.round is not None:
                    rounds[lane] = message.round
                state = {**rounds[lane], "emitted": message.emitted}
                batch = PackedBatch(
                    message.rows,
                    lane=lane,
                    step=message.step,
                    has_next=message.has_next,
                    state=state,
                )
                yield Delivery(batch, message.metrics, state, message.rows.tokens.dtype)
    finally:
        for worker in workers:
            worker.stop()


def fill_gaps(
    ending: Iterable[Delivery | Gap], config: LaneConfig, state_of: Callable[[int], LaneState]
) -> Generator[Delivery, None, None]:
    """What `ending` serves, with empty batches for the gaps.

    Args:
        ending: an `Ending` of deliveries; config: of the run.
        state_of: the state of a dry lane, asked for when its last batch is taken.
    """
    dtype = np.dtype(np.uint16 if config.row_format.pad_id < 1 << 16 else np.uint32)
    for item in ending:
        if isinstance(item, Gap):
            rows = padding_rows(config, item.step, dtype)
            state = partial(state_of, item.lane)
            batch = PackedBatch(rows, lane=item.lane, step=item.step, state=state)
            yield Delivery(batch, None, state, dtype)
        else:
            dtype = item.dtype
            yield item
