"""The lanes of one process: in turn, and with what those of other processes report."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streampack.deals.board import Board, MemoryBoard, SharedBoard
from streampack.deals.dealer import Dealer
from streampack.errors import StateError
from streampack.lane.config import LaneConfig, LaneShare
from streampack.lane.lane import Lane
from streampack.lane.state import LaneBatch, LaneEnd, decode_reports
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
            yield item


def _end(item: LaneBatch | LaneEnd) -> LaneEnd:
    """The end of a lane whose last item is another rank's."""
    spent = Metrics() if item.metrics is None else Metrics(times=item.metrics.times)
    given = item.step + isinstance(item, LaneBatch)
    return LaneEnd(item.lane, given, item.round, item.emitted, spent)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a rank's lanes take part in deals.

    Attributes:
        name: of the board that its worker processes share; None if its lanes run in one process.
        unknown: lanes of ranks that are not connected, with their states. This process runs them
            too, as far as deals need their reports, and drops their batches.
        missing: such lanes whose states are not there.
        kept: whether a loader's process keeps the board's name until all workers have ended.
    """

    name: str | None = None
    unknown: Mapping[int, dict[str, Any] | None] | None = None
    missing: Sequence[int] = ()
    kept: bool = False

    def board(self, config: LaneConfig) -> Board:
        """The board of this process."""
        lines = len(config.dealing.lines) if config.dealing else 0
        if self.name is None:
            return MemoryBoard(config.lanes, lines)
        return SharedBoard(config.lanes, lines, self.name, kept=self.kept)

    def dealer(
        self, config: LaneConfig, board: Board, states: Mapping[int, dict[str, Any] | None]
    ) -> Dealer | None:
        """Who deals to the lanes of this process, which go on from these states."""
        if config.dealing is None:
            return None
        dealer = Dealer(config.dealing, board)
        unknown = self.unknown or {}
        for lane, state in [*states.items(), *unknown.items()]:
            if state is not None:
                reports, last = decode_reports(state["reports"]), state["reported_deal"]
                board.load(lane, reports, last)
                if state["final"]:
                    board.end(lane, last + 1)
            else:
                board.load(lane, config.dealing.before_first(), config.dealing.first)
        if unknown or self.missing:
            board.find = _Others(config, dealer, unknown, self.missing).find
        return dealer


class _Others:
    """Lanes of other ranks, run for what they report."""

    def __init__(
        self,
        config: LaneConfig,
        dealer: Dealer,
        states: Mapping[int, dict[str, Any] | None],
        missing: Sequence[int],
    ) -> None:
        self._config = config
        self._dealer = dealer
        self._states = states
        self._missing = missing
        self._running: dict[int, Lane] = {}

    def find(self, deal: int) -> None:
        """Let those that have not reported for a deal run until they do."""
        board = self._dealer.board
        for number in board.missing(deal):
            if number in self._missing:
                raise StateError(
                    f"Lane {number} is another rank's, and the state does not hold it.",
                    "Load what merge_states makes of all ranks' states, or connect the ranks.",
                )
            if number not in self._states:
                continue
            lane = self._running.get(number)
            if lane is None:
                if not self._running:
                    logger.warning(
                        "%d lanes are those of other ranks, which are not connected with this "
                        "process, so it reads their documents too. Initialise torch.distributed "
                        "before the loader is built, and use PackedLoader. Where there are fewer "
                        "lanes than ranks, it cannot be avoided.",
                        len(self._states),
                    )
                lane = Lane(self._config, number, self._states[number], self._dealer)
                self._running[number] = lane
            while number in board.missing(deal):
                if isinstance(lane.next(), LaneEnd):
                    break
