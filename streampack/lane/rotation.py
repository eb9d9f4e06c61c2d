"""Run the lanes of one process in turn, with the reports of lanes in other processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from streampack.deals.dealer import Dealer
from streampack.deals.report_channel import ReportChannel
from streampack.deals.report_exchange import ReportExchange
from streampack.errors import StateError
from streampack.lane.config import LaneConfig, LaneShare
from streampack.lane.lane import Lane
from streampack.lane.state import LaneBatch, LaneEnd
from streampack.metrics import LaneTimes, Metrics
from streampack.sources.error_policy import ErrorPolicy

logger = logging.getLogger(__name__)


def rotate(
    share: LaneShare, sharing: ReportChannel, exchange: ReportExchange
) -> Iterator[LaneBatch | LaneEnd]:
    """Yield the rank's batches of some lanes in turn, each lane up to its last batch.

    `sharing` and `exchange` configure the lanes' part in deals.

    A lane yields its end, once, if its last batch belongs to another rank or if it has no batch.
    Losses in another rank's batch are counted by that rank. A lane starts at its first turn, so
    that the first batch waits for one lane only. The lanes take their turns together, batches of
    other ranks included, because deals depend on the reports of all lanes.
    """
    config, states, topology, start = share.config, share.states, share.topology, share.start
    dealer = sharing.dealer(config.dealing, exchange, states)
    skips = ErrorPolicy(config.on_error)  # counts broken images of finished batches
    others = OtherLanes(config, dealer, sharing)
    tell = _hints(config, dealer, states) if dealer and config.source._inner._hints else None
    running: dict[int, Lane | None] = dict.fromkeys(states)
    waited_for = set(states)  # lanes that have not given their last item
    ready: dict[int, LaneBatch | LaneEnd] = {}
    following = start  # index of the next batch to make
    number_of_rank = topology.batch(start, 0)
    while waited_for:
        for number in range(following, number_of_rank + 1):
            step, lane = divmod(number, config.lanes)
            if lane in running:
                others.report_for(step + 1)  # because a lane makes a round one batch ahead
                running[lane] = started = running[lane] or Lane(config, lane, states[lane], dealer)
                item = started.next()
                while item.has_next and item.step < step:
                    item = started.next()  # the loop stopped after another rank's batch
                if not item.has_next:
                    del running[lane]
                if number == number_of_rank and (item.step == step or isinstance(item, LaneEnd)):
                    ready[lane] = item
                elif not item.has_next:
                    ready[lane] = _end(item)
        following = number_of_rank + 1
        lane = number_of_rank % config.lanes
        number_of_rank += topology.world_size
        if made := ready.pop(lane, None):
            if lane not in running:
                waited_for.discard(lane)
            if tell:
                tell(made.step)
            yield _finished(made, config, skips)


def _hints(config: LaneConfig, dealer: Dealer, states: Mapping[int, Any]) -> Callable[[int], None]:
    from streampack.mixtures.hints import Hints

    return Hints(config.source, config.seed, config.shuffle, dealer, states)


def _finished(
    item: LaneBatch | LaneEnd, config: LaneConfig, skips: ErrorPolicy
) -> LaneBatch | LaneEnd:
    """Return the item; a batch is first finished by the row stages that run at hand-out."""
    if not config.finishes or isinstance(item, LaneEnd):
        return item
    before, times = skips.counts.skipped, LaneTimes()
    with times.measure("finish_s"):
        rows = config.finished(item.rows, config.source.document_name, skips)
    skipped = skips.counts.skipped - before
    if not skipped:
        skips.in_a_row = 0
    metrics = (item.metrics or Metrics()) + Metrics(skipped=skipped, times=times)
    return item._replace(rows=rows, metrics=metrics)


def _end(item: LaneBatch | LaneEnd) -> LaneEnd:
    """Return the end of a lane after a last item that belongs to another rank."""
    spent = Metrics() if item.metrics is None else Metrics(times=item.metrics.times)
    batches = item.step + isinstance(item, LaneBatch)
    return LaneEnd(item.lane, batches, item.start, item.emitted, spent)


class OtherLanes:
    """The lanes of unconnected ranks, which this process runs for their reports.

    Args:
        config: configuration of the run.
        dealer: dealer of this process; None if parts are not dealt.
        sharing: names these lanes and their start states.
    """

    def __init__(self, config: LaneConfig, dealer: Dealer | None, sharing: ReportChannel) -> None:
        self._config = config
        self._dealer = dealer if sharing.unknown or sharing.missing else None
        self._sharing = sharing
        self._running: dict[int, Lane] = {}
        self._done = 1  # number of deals reported for; the first needs no report

    def report_for(self, step: int) -> None:
        """Run these lanes until they have reported for each deal known to a round from `step` on.

        To be called before a lane of this process begins such a round. The lanes themselves need
        only older deals, which are made by then.

        Raises:
            StateError: the state of such a lane is missing.
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
        """Run a lane until it has reported for a deal, if it belongs to an unconnected rank."""
        sharing = self._sharing
        if number in sharing.missing:
            raise StateError(
                f"The state must hold lane {number} of another rank, and lacks it.",
                "Load the result of merge_states for all ranks' states, or connect the ranks.",
            )
        if number not in sharing.unknown:
            return
        if not self._running:
            logger.warning(
                "%d lanes belong to other ranks, which are not connected with this process, so "
                "it reads their documents too. Initialise torch.distributed before the loader is "
                "built, and use PackedLoader. Where there are fewer lanes than ranks, it cannot "
                "be avoided.",
                len(sharing.unknown),
            )
        if number not in self._running:
            self._running[number] = Lane(self._config, number, sharing.unknown[number], dealer)
        lane = self._running[number]
        while number in dealer.exchange.needed(deal) and lane.next().has_next:
            pass  # its batches belong to the other rank
