"""Dealer: the deals of a run, made by each process for itself from what the lanes report."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack.dealing.board import Board
from streampack.dealing.rule import FRACTION, Cut, DealRule, Place, Span, deal

__all__ = ["Dealer"]


class Dealer:
    """The deals of one run in one process.

    Args:
        rule: of the run.
        board: where the lanes of this process report, and find what others do.
    """

    def __init__(self, rule: DealRule, board: Board) -> None:
        self.rule = rule
        self.board = board
        self._made = 0
        self._place = Place(0, 0)
        self._cuts: list[Cut] = []
        self._dealt = np.zeros(rule.lanes, dtype=np.int64)  # weight, of all deals made

    def spans(self, lane: int, deals: int) -> list[Span]:
        """What the first `deals` deals gave a lane, in the order in which it reads them.

        Waits for reports of other lanes that are not known yet.
        """
        self.make(deals)
        return [
            Span(cut.epoch, int(cut.bounds[lane]), int(cut.bounds[lane + 1]))
            for cut in self._cuts
            if cut.deal < deals and cut.bounds[lane] < cut.bounds[lane + 1]
        ]

    def used_up(self, deals: int) -> bool:
        """Whether the first `deals` deals gave everything."""
        self.make(deals)
        return self.is_over and self._cuts[-1].deal < deals

    def gave(self, number: int) -> bool:
        """Whether a deal that was made gave something."""
        return any(cut.deal == number for cut in self._cuts)

    @property
    def is_over(self) -> bool:
        """Whether everything is dealt, as far as deals were made."""
        return self._place.epoch == self.rule.epochs

    def make(self, deals: int) -> None:
        """Make the first `deals` deals, as far as there is something to deal.

        Waits for reports that are not known yet.
        """
        while self._made < deals and not self.is_over:
            number = self._made
            reports = self._reports(number)
            if reports is not None:
                cuts, self._place = deal(self.rule, number, self._place, *reports)
                for cut in cuts:
                    self._dealt += np.diff(cut.bounds)
                self._cuts += cuts
            self._made = number + 1

    def _reports(self, number: int) -> tuple[NDArray[np.int64], int] | None:
        """What a deal goes by, as `deal` takes it; None if it is known to give nothing."""
        rule = self.rule
        if number == 0:
            return np.zeros(rule.lanes, dtype=np.int64), rule.rate
        row = self.board.row(number)
        if row is None:
            return None
        until, ahead = row
        # What a lane finds up to there: its batches so far, and what is ahead.
        found = (number * rule.every + 1) * rule.batch_tokens + ahead
        rates = (found << FRACTION) // np.maximum(until, 1)
        known = rates[until > 0]
        rate = int(known.sum()) // len(known) if len(known) else 0
        return ahead + (np.maximum(self._dealt - until, 0) * rate >> FRACTION), rate
