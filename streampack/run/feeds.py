"""A rank's feed of batches: made in the loop's process, or by workers and restarted if they die.

The ranks of a job exchange the same questions in every step, and a rank that started over would ask
a different one. So on connected ranks a feed with dead workers is reopened after its last item, and
the error is held until the loop asks for its next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace

from streampack.batch import PackedBatch
from streampack.batch.kinds import kind_of
from streampack.deals.report_exchange import ReportExchange
from streampack.deals.sharing import Sharing
from streampack.errors import WorkerError
from streampack.lane.config import LaneShare
from streampack.lane.rotation import rotate
from streampack.lane.state import LaneEnd
from streampack.run.state import Deferred

#: Opens a rank's batches of some lanes, given their part in deals and the exchange of reports.
OpenFeed = Callable[[LaneShare, Sharing, ReportExchange], Iterable[PackedBatch | LaneEnd]]


def feed_in_process(
    share: LaneShare, sharing: Sharing, exchange: ReportExchange
) -> Iterable[PackedBatch | LaneEnd]:
    """Yield a rank's batches of some lanes, made in this process."""
    for item in rotate(share, sharing, exchange):
        yield item if isinstance(item, LaneEnd) else kind_of(item.rows).of_lane(item)


def restarting(
    open_feed: OpenFeed,
    share: LaneShare,
    sharing: Sharing,
    exchange: ReportExchange,
    report: Callable[[WorkerError], None],
) -> Generator[PackedBatch | LaneEnd, None, None]:
    """Yield a feed's items and restart its workers if they die.

    Args:
        open_feed: opens the feed.
        share, sharing, exchange: arguments of `open_feed`.
        report: called with the error of workers that died and were restarted.

    Raises (while iterating):
        WorkerError: the workers died twice without an item in between, or cannot start.
        Exception: any other error of the feed.
    """
    lanes: dict[int, Deferred] = dict(share.states)
    start, is_stuck = share.start, False
    while True:
        feed = open_feed(_share_from(share, start, lanes), sharing, exchange)
        try:
            for item in feed:
                if isinstance(item, LaneEnd) or not item.has_next:
                    del lanes[item.lane]
                else:
                    lanes[item.lane] = item.lane_state
                if not isinstance(item, LaneEnd):
                    number = item.step * share.config.lanes + item.lane
                    start = share.topology.step_after(number)
                is_stuck = False
                yield item
            return
        except WorkerError as error:
            if error.setting == "multiprocessing_context":
                raise
            if is_stuck:
                raise WorkerError(
                    f"{error.fact} This happened twice without a batch in between.",
                    "Check the memory of the machine, and resume all ranks from a checkpoint.",
                ) from error
            is_stuck = True
            report(error)
        finally:
            if isinstance(feed, Generator):
                feed.close()


def _share_from(share: LaneShare, start: int, lanes: dict[int, Deferred]) -> LaneShare:
    """Return the share of lanes that have not ended, from batch `start` on."""
    order = share.topology.lanes(start, share.config.lanes)
    states = {lane: lanes[lane] for lane in order if lane in lanes}
    made = {lane: state() if callable(state) else state for lane, state in states.items()}
    return replace(share, start=start, states=made)
