"""The exchange of reports between the ranks of a job: one collective per deal, ordered by steps.

Every rank starts it before the first step that begins after all lanes have given the batch that the
deal goes by, and has its result before the next step. No lane needs it sooner (see `rule.LAG`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streampack.dealing.dealer import Dealer
from streampack.job.ending import Ranks


class DealExchange:
    """One rank's part in it.

    Args:
        dealer: whose board has what the lanes of this rank report.
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
            entries = dealer.board.filled(self._next)
            # A board's entries are whole numbers of 24 bits, so nothing is lost.
            sent = entries.astype(np.float32)
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
            self._dealer.board.merge(number, wait().astype(np.int64))
            self._dealer.make(number + 1)
