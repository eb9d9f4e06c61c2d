"""The deals of a run, made by each process, and the exchange of reports between ranks.

Ranks exchange reports with one collective per deal, ordered by steps, once they know that all are
about to. Every rank starts it before
the first step that begins after all lanes have given the batch that the
deal goes by, and has its result before the next step. No lane needs it sooner (see `rule.LAG`).
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
    Place,
    Span,
    deal,
)
from streampack.job.ending import Ranks, question


class _Dealt:
    """What the deals that were made gave of one line."""

    def __init__(self, line: Line, lanes: int) -> None:
        self.line = line
        self.place = Place(0, 0)
        self.cuts: list[Cut] = []
        self.weight = np.zeros(lanes, dtype=np.int64)  # of every lane
        self.alike = True  # whether lanes were so in all deals

    @property
    def is_over(self) -> bool:
        return self.place.epoch >= self.line.epochs


class Dealer:
    """The deals of one run in one process.

    Args:
        rule: of the run.
        exchange: where the lanes of this process report, and find what others do.
    """

    def __init__(self, rule: DealRule, exchange: ReportExchange) -> None:
        self.rule = rule
        self.exchange = exchange
        self._made = 0
        self._gave: set[tuple[int, int]] = set()  # numbers of a deal and of a line
        self._dealt = {name: _Dealt(line, rule.lanes) for name, line in rule.lines.items()}

    def spans(self, name: str, lane: int, deals: int) -> list[Span]:
        """What the first `deals` deals gave a lane of a line, in the order in which it reads them.

        Waits for reports of other lanes that are not known yet.
        """
        return [
            Span(cut.epoch, int(cut.bounds[lane]), int(cut.bounds[lane + 1]))
            for cut in self._dealt[name].cuts[: self.count(name, deals)]
            if cut.bounds[lane] < cut.bounds[lane + 1]
        ]

    def used_up(self, deals: int, name: str | None = None) -> bool:
        """Whether the first `deals` deals gave everything, of one line or of all."""
        return all(
            self.count(line, deals) == len(dealt.cuts) and dealt.is_over
            for line, dealt in self._dealt.items()
            if name in (None, line)
        )

    def gave(self, number: int, line: int) -> bool:
        """Whether a deal that was made gave something of a line, named by its number."""
        return (number, line) in self._gave

    def count(self, name: str, deals: int) -> int:
        """How many parts of a line the first `deals` deals cut; it only grows with `deals`."""
        self.make(deals)
        return bisect_left(self._dealt[name].cuts, deals, key=lambda cut: cut.deal)

    @property
    def is_over(self) -> bool:
        """Whether everything is dealt, as far as deals were made."""
        return self._made >= self.rule.first and all(
            dealt.is_over for dealt in self._dealt.values()
        )

    def make(self, deals: int) -> None:
        """Make the first `deals` deals, as far as there is something to deal.

        Waits for reports that are not known yet.
        """
        while self._made < deals and not self.is_over:
            number = self._made
            self._deal(number, self.exchange.row(number) if number else None)
            self._made = number + 1

    def _deal(self, number: int, row: list[NDArray[np.int64] | None] | None) -> None:
        rule = self.rule.of_deal(number)
        among = ONE - sum(
            line.share
            for name, line in rule.lines.items()
            if self._dealt[name].place.epoch >= line.epochs
        )
        for i, (name, line) in enumerate(rule.lines.items()):
            dealt = self._dealt[name]
            left, rate, alike = np.zeros(rule.lanes, dtype=np.int64), line.rate, False
            reports = None if row is None else row[i]
            if dealt.place.epoch >= line.epochs or (number and reports is None):
                continue
            if reports is not None:
                left, rate, alike = _found(dealt.weight, *reports)
                # Over several epochs all lanes come near the mean, however they differ.
                alike = alike and (dealt.alike or not dealt.place.epoch)
            cuts, dealt.place = deal(
                rule, line, number, dealt.place, left, rate, among=among, alike=alike
            )
            for cut in cuts:
                dealt.weight += np.diff(cut.bounds)
            dealt.cuts += cuts
            if cuts:
                self._gave.add((number, i))
                dealt.alike = alike or not number


def _found(
    dealt: NDArray[np.int64],
    until: NDArray[np.int64],
    ahead: NDArray[np.int64],
    found: NDArray[np.int64],
) -> tuple[NDArray[np.int64], int, bool]:
    """What lanes have found of a line.

    Returns:
        (lanes,) tokens that they have still to give; tokens per weight; and whether these are much
        the same for all lanes.

    Args:
        dealt: (lanes,) weight that they were dealt.
        until, ahead, found: (lanes,) what they report.
    """
    most = MOST_TOKENS - 1  # which times 2**16 an int64 holds
    rates = (np.minimum(found, most) << FRACTION) // np.maximum(until, 1)
    known = rates[until > 0].tolist()  # added up as Python's integers
    rate = sum(known) // len(known) if known else 0
    unread = np.clip(dealt - until, 0, (most << FRACTION) // max(rate, 1))
    left = np.minimum(ahead, most) + (unread * rate >> FRACTION)
    alike = bool(known) and max(known) - min(known) <= rate // ALIKE
    return left, rate, alike


class RankExchange:
    """One rank's part in the exchange of reports between ranks.

    Args:
        dealer: whose exchange has what the lanes of this rank report.
        ranks: who takes part.
    """

    def __init__(self, dealer: Dealer, ranks: Ranks) -> None:
        self._dealer = dealer
        self._ranks = ranks
        self._next = 1
        self._begun = False
        self._waiting: deque[tuple[int, Callable[[], NDArray[np.float32]]]] = deque()

    def before_step(self, first: int) -> None:
        """To be called by all ranks before the step that begins with batch number `first`."""
        self._finish()
        dealer = self._dealer
        dealer.make(1)
        while not dealer.is_over and self._is_due(first):
            entries = dealer.exchange.filled(self._next)
            # Entries are whole numbers of 24 bits, so nothing is lost.
            sent = entries.astype(np.float32)
            # A rank that asks something else here, of another size, would end the process.
            self._ranks.total(0, question("deal", self._next))()
            self._waiting.append((self._next, self._ranks.highest(sent)))
            self._next += 1
            if not self._begun:  # deals before the place that a run goes on from
                self._finish()
        self._begun = True

    def _is_due(self, first: int) -> bool:
        rule = self._dealer.rule
        return self._next <= rule.first or (rule.step(self._next) + 1) * rule.lanes <= first

    def _finish(self) -> None:
        """Take over the results of what was started."""
        while self._waiting:
            number, wait = self._waiting.popleft()
            self._dealer.exchange.merge(number, wait().astype(np.int64))
            self._dealer.make(number + 1)
