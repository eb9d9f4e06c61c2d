"""Data-parallel ranks as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value")


class SimulatedRanks:
    """What `number` threads ask of one another, in order."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.answers: dict[int, list[Any]] = {}
        self.changed = threading.Condition()

    def member(self) -> Member:
        return Member(self)


class Member:
    def __init__(self, ranks: SimulatedRanks) -> None:
        self.ranks = ranks
        self.asked = 0

    def total(self, count: int) -> Callable[[], int]:
        return self._asked(count, sum)

    def highest(self, values: NDArray[np.int64]) -> Callable[[], NDArray[np.int64]]:
        return self._asked(values.copy(), np.maximum.reduce)

    def _asked(self, value: Any, together: Callable[[list[Any]], Any]) -> Callable[[], Any]:
        number, self.asked = self.asked, self.asked + 1
        with self.ranks.changed:
            values = self.ranks.answers.setdefault(number, [])
            values.append(value)
            self.ranks.changed.notify_all()

        def wait() -> Any:
            with self.ranks.changed:
                ready = self.ranks.changed.wait_for(lambda: len(values) == self.ranks.number, 60)
            assert ready, "the ranks did not ask the same questions"
            assert len({type(value) for value in values}) == 1, "the ranks asked other questions"
            return together(values)

        return wait


def on_ranks(number: int, function: Callable[[int, Any], Value]) -> list[Value]:
    """``function(rank, member)`` on so many ranks at once."""
    ranks = SimulatedRanks(number)
    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(function, rank, ranks.member()) for rank in range(number)]
        results = [future.result() for future in futures]
    asked = {len(counts) for counts in ranks.answers.values()}
    assert asked <= {number}, "a rank asked what others did not"
    return results
