"""Collectives of a rank, with the time for which it waited for other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from streampack.job.ending import Ranks

Value = TypeVar("Value")


class TimedRanks:
    """The same collectives as `ranks`, timed.

    Attributes:
        ranks: connection of the ranks.
        waited_s: seconds that this rank waited for results.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.waited_s = 0.0

    def total(self, count: int, same: int = 0) -> Callable[[], int]:
        """See `Ranks`."""
        return self._timed(self.ranks.total(count, same))

    def highest(self, values: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
        """See `Ranks`."""
        return self._timed(self.ranks.highest(values))

    def _timed(self, wait: Callable[[], Value]) -> Callable[[], Value]:
        def result() -> Value:
            began = time.perf_counter()
            try:
                return wait()
            finally:
                self.waited_s += time.perf_counter() - began

        return result
