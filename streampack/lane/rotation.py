"""Several lanes of one process in turn: one batch from each, until all have ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from streampack.dealing.dealer import Dealer
from streampack.job.topology import Topology
from streampack.lane.batch import LaneBatch, LaneEnd
from streampack.lane.config import LaneConfig
from streampack.lane.lane import Lane
from streampack.metrics import Metrics

__all__ = ["rotate"]


def rotate(
    config: LaneConfig,
    states: Mapping[int, dict[str, Any] | None],
    topology: Topology,
    start: int,
    dealer: Dealer | None = None,
) -> Iterator[LaneBatch | LaneEnd]:
    """Yield this rank's batches of these lanes in turn, each lane up to its last batch.

    A lane gives its end, once, if its last batch is another rank's or if it has none. What was
    lost in making another rank's batch is left to that rank to count. A lane starts when its turn
    comes first, so that the first batch waits for one lane only.

    Args:
        config: of the run.
        states: of each lane, where it goes on from; None is its beginning. Their order is that
            of the rotation.
        topology: of the rank; start: number of the first batch.
        dealer: where the lanes are dealt their parts of the source.
    """
    running: dict[int, Lane | None] = dict.fromkeys(states)
    while running:
        for lane in list(running):
            started = running[lane]
            if started is None:
                started = running[lane] = Lane(config, lane, states[lane], dealer)
            item, mine = _next_turn(started, topology, start)
            if isinstance(item, LaneEnd) or not item.has_next:
                del running[lane]
            if mine:
                yield item
            else:
                spent = Metrics() if item.metrics is None else Metrics(times=item.metrics.times)
                given = item.step + isinstance(item, LaneBatch)
                yield LaneEnd(lane, given, item.round, item.emitted, spent)


def _next_turn(lane: Lane, topology: Topology, start: int) -> tuple[LaneBatch | LaneEnd, bool]:
    """The lane's next item that is this rank's, or its last one, and whether it is this rank's."""
    while True:
        item = lane.next()
        mine = topology.takes(item.step * lane.config.lanes + item.lane, start)
        if mine or isinstance(item, LaneEnd) or not item.has_next:
            return item, mine
