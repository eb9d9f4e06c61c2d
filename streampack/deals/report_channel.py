"""ReportChannel: the part of one process's lanes in deals, and the reports of lanes."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streampack.deals.dealer import Dealer
from streampack.deals.report_exchange import MemoryExchange, ReportExchange
from streampack.deals.rule import DealRule, Report

#: State of a lane; None for its beginning.
LaneState = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ReportChannel:
    """Settings by which a rank's lanes take part in deals.

    Attributes:
        name: name of the file through which worker processes exchange reports; None if all lanes
            run in one process.
        unknown: lanes of ranks that are not connected, with their states. This process runs them
            too, as far as deals need their reports, and drops their batches.
        missing: lanes of such ranks without a state.
        kept: True if the loader's process keeps the file until all workers have ended.
    """

    name: str | None = None
    unknown: Mapping[int, dict[str, Any] | None] = field(default_factory=dict)
    missing: Sequence[int] = ()
    kept: bool = False

    def exchange(self, rule: DealRule | None) -> ReportExchange:
        """Open the exchange from which this process gets the lanes' reports."""
        if rule is None:
            return MemoryExchange(0, 0)
        if self.name is None:
            return MemoryExchange(rule.lanes, len(rule.lines))
        from streampack.workers.shared_exchange import SharedExchange

        return SharedExchange(rule.lanes, len(rule.lines), self.name, kept=self.kept)

    def dealer(
        self, rule: DealRule | None, exchange: ReportExchange, states: Mapping[int, LaneState]
    ) -> Dealer | None:
        """Create the dealer for the lanes of this process, which continue from these states."""
        if rule is None:
            return None
        for lane, state in [*states.items(), *self.unknown.items()]:
            reports, last = reported(state, rule)
            exchange.load(lane, reports, last)
            if state is not None and state["final"]:
                exchange.end(lane, last + 1)
        return Dealer(rule, exchange)


def reported(state: LaneState, rule: DealRule) -> tuple[list[list[int]], int]:
    """Return a lane's reports, and the index of the last deal that it has reported for.

    A report is a list: index of a deal, index of a line, and the values of a `Report`.
    """
    if state is None:
        return rule.before_first(), rule.first
    return decode_reports(state["reports"]), state["reported_deal"]


def encode_reports(reports: list[list[int]]) -> str:
    """Compress reports to text, since they are many and repetitive."""
    text = json.dumps(reports, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode())).decode()


def decode_reports(text: str) -> list[list[int]]:
    """Decode the text of `encode_reports`."""
    reports: list[list[int]] = json.loads(zlib.decompress(base64.b64decode(text)))
    return reports


class LaneReports:
    """Reports of one lane for deals.

    Args:
        lane: index of the lane.
        rule: the run's rule; None if nothing is dealt.
        dealer: dealer that receives the reports, or None.
        state: state of the lane; None for its beginning.

    Attributes:
        entries: reports in the form of `reported`, without deals that gave nothing.
        last: index of the last deal that the lane has reported for.
    """

    def __init__(
        self, lane: int, rule: DealRule | None, dealer: Dealer | None, state: LaneState
    ) -> None:
        self.entries, self.last = ([], 0) if rule is None else reported(state, rule)
        self._lane = lane
        self._dealer = dealer

    def begin_round(self, step: int) -> None:
        """Remove deals that gave nothing, among the deals available to rounds from batch `step`."""
        dealer = self._dealer
        if dealer is not None:
            opened = min(dealer.rule.known(step), self.last)
            self.entries = [
                entry
                for entry in self.entries
                if entry[0] >= opened or dealer.gave(entry[0], entry[1])
            ]

    def due(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the deals for which the lane must report at its batches [start, stop).

        Each is the deal's index and its batch's offset from `start`. A round that is planned a
        second time has reported already.
        """
        if self._dealer is None:
            return []
        rule = self._dealer.rule
        due = rule.due(start, stop)
        return [(number, rule.step(number) - start) for number in due if number > self.last]

    def put(self, deal: int, reports: Sequence[Report]) -> None:
        """Report on all lines for a deal."""
        assert self._dealer is not None
        self.entries += [[deal, line, *report] for line, report in enumerate(reports)]
        self._dealer.exchange.put_lines(deal, self._lane, reports)
        self.last = deal

    def end(self) -> None:
        """Report to the other lanes that this lane has ended."""
        if self._dealer is not None:
            self._dealer.exchange.end(self._lane, self.last + 1)
