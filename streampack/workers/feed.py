"""Feeds: a rank's batches as its lanes give them, made in the loop's process or by workers.

Each worker runs some of the lanes and sends their batches in rotation; the feed asks the worker
that owns the next lane, so the order is the same for any number of workers, none included.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streampack.batch import PackedBatch
from streampack.job.ending import Gap
from streampack.lane.empty_batch import padding_rows
from streampack.lane.lane import LaneConfig, LaneEnd, warm_up
from streampack.lane.rotation import rotate
from streampack.metrics import Metrics
from streampack.workers.delivery import Delivery, LaneState
from streampack.workers.receiver import FieldsAhead, Receiver
from streampack.workers.worker import Dry
from streampack.workers.worker_handle import WorkerHandle

__all__ = ["WorkerSettings", "feed_from_workers", "feed_in_process", "fill_gaps"]

#: Told of a lane that has no batch at all: its number, its state, and what it lost or spent.
OnEnd = Callable[[int, dict[str, Any], Metrics], None]


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
    receivers: list[Receiver] = []
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
        fields = FieldsAhead()
        # Threads start behind the last fork, so that no child is forked beside them.
        receivers += [Receiver(worker, fields) for worker in workers]
        running = {lane: receivers[i % count] for i, lane in enumerate(lanes)}
        while running:
            for lane in list(running):
                received = running[lane].receive(settings.timeout_s)
                assert received.lane == lane, "a worker's lanes rotate as the loader's do"
                if isinstance(received, Dry):
                    del running[lane]
                    on_end(lane, received.state, received.metrics)
                    continue
                if not received.has_next:
                    del running[lane]
                yield received
    finally:
        for receiver in receivers:
            receiver.stop()
        for worker in workers[len(receivers) :]:
            worker.end_process()
            worker.close()


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
