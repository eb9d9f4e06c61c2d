"""Sharing: how the lanes of one process take part in deals, and what lanes have reported."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streampack.deals.dealer import Dealer
from streampack.deals.report_exchange import MemoryExchange, ReportExchange, SharedExchange
from streampack.deals.rule import DealRule, Report

#: The state of a lane; None is its beginning.
LaneState = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a rank's lanes take part in deals.

    Attributes:
        name: of the file with which its worker processes exchange reports; None if its lanes run
            in one process.
        unknown: lanes of ranks that are not connected, with their states. This process runs them
            too, as far as deals need their reports, and drops their batches.
        missing: such lanes whose states are not there.
        kept: whether a loader's process keeps the file's name until all workers have ended.
    """

    name: str | None = None
    unknown: Mapping[int, dict[str, Any] | None] = field(default_factory=dict)
    missing: Sequence[int] = ()
    kept: bool = False

    def exchange(self, rule: DealRule | None) -> ReportExchange:
        """How this process learns what lanes report."""
        if rule is None:
            return MemoryExchange(0, 0)
        if self.name is None:
            return MemoryExchange(rule.lanes, len(rule.lines))
        return SharedExchange(rule.lanes, len(rule.lines), self.name, kept=self.kept)

    def dealer(
        self, rule: DealRule | None, exchange: ReportExchange, states: Mapping[int, LaneState]
    ) -> Dealer | None:
        """Who deals to the lanes of this process, which go on from these states."""
        if rule is None:
            return None
        for lane, state in [*states.items(), *self.unknown.items()]:
            reports, last = reported(state, rule)
            exchange.load(lane, reports, last)
            if state is not None and state["final"]:
                exchange.end(lane, last + 1)
        return Dealer(rule, exchange)


def reported(state: LaneState, rule: DealRule) -> tuple[list[list[int]], int]:
    """What a lane has reported, and the number of the last deal that it has reported for.

    A report is numbers: of a deal, of a line, and those of a `Report`.
    """
    if state is None:
        return rule.before_first(), rule.first
    return decode_reports(state["reports"]), state["reported_deal"]


def encode_reports(reports: list[list[int]]) -> str:
    """Reports as text: they are many and much alike."""
    text = json.dumps(reports, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode())).decode()


def decode_reports(text: str) -> list[list[int]]:
    """The reports that `encode_reports` wrote."""
    reports: list[list[int]] = json.loads(zlib.decompress(base64.b64decode(text)))
    return reports


class LaneReports:
    """What one lane has reported for deals.

    Args:
        lane: its number.
        rule: of the run; None if its lanes are dealt nothing.
        dealer: who is told; None if nobody is.
        state: of the lane; None is its beginning.

    Attributes:
        entries: as `reported` returns them, without those of deals that gave nothing.
        last: number of the last deal that the lane has reported for.
    """

    def __init__(
        self, lane: int, rule: DealRule | None, dealer: Dealer | None, state: LaneState
    ) -> None:
        self.entries, self.last = ([], 0) if rule is None else reported(state, rule)
        self._lane = lane
        self._dealer = dealer

    def forget(self, step: int) -> None:
        """Leave out what gave nothing, of deals that a round from batch `step` on may know."""
        dealer = self._dealer
        if dealer is not None:
            opened = min(dealer.rule.known(step), self.last)
            self.entries = [
                entry
                for entry in self.entries
                if entry[0] >= opened or dealer.gave(entry[0], entry[1])
            ]

    def due(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The deals for which the lane is to report at its batches [start, stop).

        Of each its number, and how many batches after `start` the one is. A round that is made
        again has reported before.
        """
        if self._dealer is None:
            return []
        rule = self._dealer.rule
        due = rule.due(start, stop)
        return [(number, rule.step(number) - start) for number in due if number > self.last]

    def put(self, deal: int, line: int, report: Report) -> None:
        """Report of a line for a deal."""
        assert self._dealer is not None
        self.entries.append([deal, line, *report])
        self._dealer.exchange.put(deal, self._lane, line, report)
        self.last = deal

    def end(self) -> None:
        """Tell the others that the lane has ended."""
        if self._dealer is not None:
            self._dealer.exchange.end(self._lane, self.last + 1)
