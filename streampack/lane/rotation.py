"""Several lanes of one process in turn: one batch from each, until all have ended."""

from __future__ import annotations

from collections.abc import Iterator

from streampack.dealing.dealer import Dealer
from streampack.lane.batch import LaneBatch, LaneEnd
from streampack.lane.config import LaneShare
from streampack.lane.lane import Lane
from streampack.metrics import Metrics


def rotate(share: LaneShare, dealer: Dealer | None = None) -> Iterator[LaneBatch | LaneEnd]:
    """Yield the rank's batches of some lanes in turn, each lane up to its last batch.

    A lane gives its end, once, if its last batch is another rank's or if it has none. What was
    lost in making another rank's batch is left to that rank to count. A lane starts when its turn
    comes first, so that the first batch waits for one lane only. The lanes take their turns
    together, batches of other ranks included: deals go by what all of them have reported.
    """
    config, states, topology, start = share.config, share.states, share.topology, share.start
    running: dict[int, Lane | None] = dict.fromkeys(states)
    waited_for = set(states)  # those that have not given their last item
    ready: dict[int, LaneBatch | LaneEnd] = {}
    following = start  # number of the batch after those that are made
    own = start + topology.rank
    while waited_for:
        for number in range(following, own + 1):
            step, lane = divmod(number, config.lanes)
            if lane in running:
                running[lane] = started = running[lane] or Lane(config, lane, states[lane], dealer)
                item = started.next()
                while isinstance(item, LaneBatch) and item.has_next and item.step < step:
                    item = started.next()  # the loop had left it after a turn of another rank
                last = isinstance(item, LaneEnd) or not item.has_next
                if last:
                    del running[lane]
                if topology.takes(number, start) and (
                    isinstance(item, LaneEnd) or item.step == step
                ):
                    ready[lane] = item
                elif last:
                    ready[lane] = _end(item)
        following = own + 1
        lane = own % config.lanes
        own += topology.world_size
        if lane in ready:
            item = ready.pop(lane)
            if lane not in running:
                waited_for.discard(lane)
            yield item


def _end(item: LaneBatch | LaneEnd) -> LaneEnd:
    """The end of a lane whose last item is another rank's."""
    spent = Metrics() if item.metrics is None else Metrics(times=item.metrics.times)
    given = item.step + isinstance(item, LaneBatch)
    return LaneEnd(item.lane, given, item.round, item.emitted, spent)
