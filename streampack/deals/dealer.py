"""Deals of a run, computed by each process, and the exchange of reports between ranks.

Ranks exchange reports with one collective per deal, in the order of steps. Every rank starts it
before the first step that begins after all lanes have delivered the deal's reporting batch, and has
its result before the next step. No lane needs it sooner (see `rule.LAG`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streampack.deals.report_exchange import ReportExchange
from streampack.deals.rule import (
    ALIKE,
    FRACTION,
    MOST_TOKENS,
    ONE,
    Cut,
    DealRule,
    Line,
    LinePosition,
    Span,
    deal,
)
from streampack.job.ending import Ranks, question


class _Dealt:
    """Result for one line of the deals made so far."""

    def __init__(self, line: Line, lanes: int) -> None:
        self.line = line
        self.position = LinePosition(0, 0)
        self.cuts: list[Cut] = []
        self.weight = np.zeros(lanes, dtype=np.int64)  # weight dealt to each lane
        self.alike = True  # True if lanes were alike in all deals

    @property
    def is_over(self) -> bool:
        return self.position.epoch >= self.line.epochs


class Dealer:
    """The deals of one run in one process.

    Args:
        rule: the run's rule of dealing.
        exchange: exchange of reports between the lanes of this process and all others.

    Attributes:
        made: number of deals made so far; dealt: their results by line.
    """

    def __init__(self, rule: DealRule, exchange: ReportExchange) -> None:
        self.rule = rule
        self.exchange = exchange
        self.made = 0
        self._gave: set[tuple[int, int]] = set()  # pairs of deal and line indices
        self.dealt = {name: _Dealt(line, rule.lanes) for name, line in rule.lines.items()}

    def spans(self, name: str, lane: int, deals: int) -> list[Span]:
        """Return the spans of a line dealt to a lane by the first `deals` deals, in reading order.

        It waits for missing reports of other lanes.
        """
        return [
            Span(cut.epoch, int(cut.bounds[lane]), int(cut.bounds[lane + 1]))
            for cut in self.dealt[name].cuts[: self.count(name, deals)]
            if cut.bounds[lane] < cut.bounds[lane + 1]
        ]

    def used_up(self, deals: int, name: str | None = None) -> bool:
        """Return True if the first `deals` deals gave away all of one line, or of every line."""
        return all(
            self.count(line, deals) == len(dealt.cuts) and dealt.is_over
            for line, dealt in self.dealt.items()
            if name in (None, line)
        )

    def gave(self, number: int, line: int) -> bool:
        """Return True if deal `number` was made and gave a part of the line with index `line`."""
        return (number, line) in self._gave

    def count(self, name: str, deals: int) -> int:
        """Return the number of parts cut from a line by the first `deals` deals; it never falls."""
        self.make(deals)
        return bisect_left(self.dealt[name].cuts, deals, key=lambda cut: cut.deal)

    @property
    def is_over(self) -> bool:
        """True if the deals made so far gave away everything."""
        return self.made >= self.rule.first and all(dealt.is_over for dealt in self.dealt.values())

    def make(self, deals: int) -> None:
        """Make the first `deals` deals, as long as there is something to deal.

        It waits for missing reports.
        """
        while self.made < deals and not self.is_over:
            number = self.made
            self._deal(number, self.exchange.row(number) if number else None)
            self.made = number + 1
            lines = self.rule.of_deal(self.made).lines
            for name, line in self.rule.of_deal(number).lines.items():
                epoch, at = self.dealt[name].position
                if lines[name].weight != line.weight and epoch and not at:  # shards were added
                    self.dealt[name].position = LinePosition(epoch - 1, line.weight)

    def _deal(self, number: int, row: list[NDArray[np.int64] | None] | None) -> None:
        rule = self.rule.of_deal(number)
        among = ONE - sum(
            line.share
            for name, line in rule.lines.items()
            if self.dealt[name].position.epoch >= line.epochs
        )
        for i, (name, line) in enumerate(rule.lines.items()):
            dealt = self.dealt[name]
            left, rate, alike = np.zeros(rule.lanes, dtype=np.int64), line.rate, False
            reports = None if row is None else row[i]
            if dealt.position.epoch >= line.epochs or (number and reports is None):
                continue
            if reports is not None:
                left, rate, alike = remaining(dealt.weight, *reports)
                # Over several epochs all lanes approach the mean, even if they differ.
                alike = alike and (dealt.alike or not dealt.position.epoch)
            cuts, dealt.position = deal(
                rule, line, number, dealt.position, left, rate, among=among, alike=alike
            )
            for cut in cuts:
                dealt.weight += np.diff(cut.bounds)
            dealt.cuts += cuts
            if cuts:
                self._gave.add((number, i))
                dealt.alike = alike or not number


def remaining(
    dealt: NDArray[np.int64],
    until: NDArray[np.int64],
    ahead: NDArray[np.int64],
    tokens: NDArray[np.int64],
) -> tuple[NDArray[np.int64], int, bool]:
    """Summarise the lanes' reports of a line.

    Args:
        dealt: (lanes,) weight dealt to each lane.
        until, ahead, found: (lanes,) columns of the lanes' `Report`.

    Returns:
        (lanes,) tokens that each lane has still to deliver; tokens per weight; and True if these
        are nearly the same for all lanes.
    """
    most = MOST_TOKENS - 1  # times 2**16 it fits in an int64
    rates = (np.minimum(tokens, most) << FRACTION) // np.maximum(until, 1)
    known = rates[until > 0].tolist()  # Python's integers do not overflow when added up
    rate = sum(known) // len(known) if known else 0
    unread = np.clip(dealt - until, 0, (most << FRACTION) // max(rate, 1))
    left = np.minimum(ahead, most) + (unread * rate >> FRACTION)
    alike = bool(known) and max(known) - min(known) <= rate // ALIKE
    return left, rate, alike


class RankExchange:
    """One rank's side of the exchange of reports between ranks.

    Args:
        dealer: dealer with the exchange to which the lanes of this rank report.
        ranks: the participating ranks.
    """

    def __init__(self, dealer: Dealer, ranks: Ranks) -> None:
        self._dealer = dealer
        self._ranks = ranks
        self._next = 1
        self._begun = False
        self._waiting: deque[tuple[int, Callable[[], NDArray[np.float32]]]] = deque()

    def before_step(self, first: int) -> None:
        """Exchange due reports; all ranks call it before the step that begins at batch `first`."""
        self._finish()
        dealer = self._dealer
        dealer.make(1)
        while not dealer.is_over and self._is_due(first):
            entries = dealer.exchange.filled(self._next)
            # Entries are integers of 24 bits, so float32 represents them exactly.
            sent = entries.astype(np.float32)
            # If a rank started another collective here, of another size, the process would crash.
            self._ranks.total(0, question("deal", self._next))()
            self._waiting.append((self._next, self._ranks.highest(sent)))
            self._next += 1
            if not self._begun:  # deals before the batch from which a run continues
                self._finish()
        self._begun = True

    def _is_due(self, first: int) -> bool:
        rule = self._dealer.rule
        return self._next <= rule.first or (rule.step(self._next) + 1) * rule.lanes <= first

    def _finish(self) -> None:
        """Merge the results of the collectives that were started."""
        while self._waiting:
            number, wait = self._waiting.popleft()
            self._dealer.exchange.merge(number, wait().astype(np.int64))
            self._dealer.make(number + 1)
