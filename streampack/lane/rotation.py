"""The lanes of one process: in turn, and with what those of other processes report."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from streampack.deals.dealer import Dealer
from streampack.deals.report_exchange import ReportExchange
from streampack.deals.sharing import Sharing
from streampack.errors import StateError
from streampack.lane.config import LaneConfig, LaneShare
from streampack.lane.lane import Lane
from streampack.lane.state import LaneBatch, LaneEnd
from streampack.metrics import Metrics
from streampack.sources.skips import Skips

logger = logging.getLogger(__name__)


def rotate(
    share: LaneShare, sharing: Sharing, exchange: ReportExchange
) -> Iterator[LaneBatch | LaneEnd]:
    """Yield the rank's batches of some lanes in turn, each lane up to its last batch.

    `sharing` and `exchange` say how the lanes take part in deals.

    A lane gives its end, once, if its last batch is another rank's or if it has none. What was
    lost in making another rank's batch is left to that rank to count. A lane starts when its turn
    comes first, so that the first batch waits for one lane only. The lanes take their turns
    together, batches of other ranks included: deals go by what all of them have reported.
    """
    config, states, topology, start = share.config, share.states, share.topology, share.start
    dealer = sharing.dealer(config.dealing, exchange, states)
    skips = Skips(config.on_error)  # of images
    others = OtherLanes(config, dealer, sharing)
    running: dict[int, Lane | None] = dict.fromkeys(states)
    waited_for = set(states)  # those that have not given their last item
    ready: dict[int, LaneBatch | LaneEnd] = {}
    following = start  # number of the batch after those that are made
    own = topology.batch(start, 0)
    while waited_for:
        for number in range(following, own + 1):
            step, lane = divmod(number, config.lanes)
            if lane in running:
                others.report_for(step + 1)  # a lane makes a round one batch ahead
                running[lane] = started = running[lane] or Lane(config, lane, states[lane], dealer)
                item = started.next()
                while item.has_next and item.step < step:
                    item = started.next()  # the loop had left it after a turn of another rank
                if not item.has_next:
                    del running[lane]
                if number == own and (item.step == step or isinstance(item, LaneEnd)):
                    ready[lane] = item
                elif not item.has_next:
                    ready[lane] = _end(item)
        following = own + 1
        lane = own % config.lanes
        own += topology.world_size
        if lane in ready:
            item = ready.pop(lane)
            if lane not in running:
                waited_for.discard(lane)
            yield _finished(item, config, skips)


def _finished(item: LaneBatch | LaneEnd, config: LaneConfig, skips: Skips) -> LaneBatch | LaneEnd:
    """The item; of a batch, with what row stages make of it only where it is handed out."""
    if not config.finishes or isinstance(item, LaneEnd):
        return item
    before = skips.counts.skipped
    item = item._replace(rows=config.finished(item.rows, config.source.document_name, skips))
    skipped = skips.counts.skipped - before
    if not skipped:
        skips.in_a_row = 0
        return item
    metrics = (item.metrics or Metrics()) + Metrics(skipped=skipped)
    return item._replace(metrics=metrics)


def _end(item: LaneBatch | LaneEnd) -> LaneEnd:
    """The end of a lane whose last item is another rank's."""
    spent = Metrics() if item.metrics is None else Metrics(times=item.metrics.times)
    given = item.step + isinstance(item, LaneBatch)
    return LaneEnd(item.lane, given, item.start, item.emitted, spent)


class OtherLanes:
    """The lanes of ranks that are not connected: this process runs them for what they report.

    Args:
        config: of the run.
        dealer: of this process; None where lanes are dealt nothing.
        sharing: says which lanes these are, and where they begin.
    """

    def __init__(self, config: LaneConfig, dealer: Dealer | None, sharing: Sharing) -> None:
        self._config = config
        self._dealer = dealer if sharing.unknown or sharing.missing else None
        self._sharing = sharing
        self._running: dict[int, Lane] = {}
        self._done = 1  # deals; nobody reports for the first

    def report_for(self, step: int) -> None:
        """Let them run until they have reported for all that a round from batch `step` may know.

        Called before a lane of this process begins such a round. What they need of deals
        themselves is older, and so made by then.

        Raises:
            StateError: the state of such a lane is not there.
        """
        dealer = self._dealer
        if dealer is None:
            return
        deals = dealer.rule.known(step)
        while self._done < deals:
            dealer.make(self._done)
            if dealer.is_over:
                return
            for lane in dealer.exchange.needed(self._done):
                self._run(lane, self._done, dealer)
            self._done += 1

    def _run(self, number: int, deal: int, dealer: Dealer) -> None:
        """Let a lane run until it has reported for a deal, if it is one of these."""
        sharing = self._sharing
        if number in sharing.missing:
            raise StateError(
                f"Lane {number} is another rank's, and the state does not hold it.",
                "Load what merge_states makes of all ranks' states, or connect the ranks.",
            )
        if number not in sharing.unknown:
            return
        if not self._running:
            logger.warning(
                "%d lanes are those of other ranks, which are not connected with this process, so "
                "it reads their documents too. Initialise torch.distributed before the loader is "
                "built, and use PackedLoader. Where there are fewer lanes than ranks, it cannot "
                "be avoided.",
                len(sharing.unknown),
            )
        if number not in self._running:
            self._running[number] = Lane(self._config, number, sharing.unknown[number], dealer)
        lane = self._running[number]
        while number in dealer.exchange.needed(deal) and lane.next().has_next:
            pass  # its batches are the other rank's
