"""WorkerFeed: a rank's batches made by workers, which are restarted if they die.

The ranks of a job exchange the same questions in every step, and a rank that started over would ask
a different one. So on connected ranks a feed with dead workers is reopened after its last item, and
the error is held until the loop asks for its next batch.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from streampack.batch import PackedBatch
from streampack.deals.report_channel import ReportChannel
from streampack.deals.report_exchange import ReportExchange
from streampack.errors import WorkerError
from streampack.job.ending import Alone
from streampack.lane.config import LaneShare
from streampack.lane.state import LaneEnd
from streampack.run.feeds import Items
from streampack.run.state import Deferred
from streampack.workers.processes import WorkerSettings, feed_from_workers

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from streampack.run.rank import RankRun


class WorkerFeed:
    """Makes batches in worker processes.

    Args:
        loader: the loader with the settings of the workers.
    """

    def __init__(self, loader: DataLoader[PackedBatch]) -> None:
        self._settings = WorkerSettings(
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor or 1,
            timeout_s=loader.timeout,
            context=loader.multiprocessing_context,
        )
        self.name = f"{os.getpid()}-{uuid.uuid4().hex}"

    def open(
        self, share: LaneShare, sharing: ReportChannel, exchange: ReportExchange, run: RankRun
    ) -> Items:
        """See `Feed`."""
        feed: Callable[[LaneShare], Items]
        feed = partial(feed_from_workers, sharing=sharing, settings=self._settings)
        if (follow := getattr(share.config.beside, "follow", None)) is not None:
            feed = partial(_followed, feed, follow)
        if isinstance(run.ranks, Alone):
            return feed(share)
        return restarting(feed, share, run.interrupt)


def _followed(
    open_feed: Callable[[LaneShare], Items], follow: Callable[[int, int], None], share: LaneShare
) -> Generator[PackedBatch | LaneEnd, None, None]:
    """Yield a feed's items, and tell its lanes how far the loop is."""
    lanes = share.config.lanes
    turn = max(lanes, share.topology.world_size)
    follow(share.start, turn)
    feed = open_feed(share)
    try:
        for item in feed:
            follow(item.step * lanes + item.lane, turn)
            yield item
    finally:
        if isinstance(feed, Generator):
            feed.close()


def restarting(
    open_feed: Callable[[LaneShare], Items],
    share: LaneShare,
    report: Callable[[WorkerError], None],
) -> Generator[PackedBatch | LaneEnd, None, None]:
    """Yield a feed's items and restart its workers if they die.

    Args:
        open_feed: opens the feed.
        share: the lanes, and their states.
        report: called with the error of workers that died and were restarted.

    Raises (while iterating):
        WorkerError: the workers died twice without an item in between, or cannot start.
        Exception: any other error of the feed.
    """
    lanes: dict[int, Deferred] = dict(share.states)
    start, is_stuck = share.start, False
    while True:
        feed = open_feed(_share_from(share, start, lanes))
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
    plain_states = {lane: state() if callable(state) else state for lane, state in states.items()}
    return replace(share, start=start, states=plain_states)
