"""Data-parallel ranks as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Value = TypeVar("Value")


class SimulatedRanks:
    """The sums that `number` threads ask for, in order."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sums: dict[int, list[int]] = {}
        self.changed = threading.Condition()

    def member(self) -> Member:
        return Member(self)


class Member:
    def __init__(self, ranks: SimulatedRanks) -> None:
        self.ranks = ranks
        self.asked = 0

    def total(self, count: int) -> Callable[[], int]:
        number, self.asked = self.asked, self.asked + 1
        with self.ranks.changed:
            counts = self.ranks.sums.setdefault(number, [])
            counts.append(count)
            self.ranks.changed.notify_all()

        def wait() -> int:
            with self.ranks.changed:
                ready = self.ranks.changed.wait_for(lambda: len(counts) == self.ranks.number, 60)
            assert ready, "the ranks did not ask the same questions"
            return sum(counts)

        return wait


def on_ranks(number: int, function: Callable[[int, Any], Value]) -> list[Value]:
    """``function(rank, member)`` on so many ranks at once."""
    ranks = SimulatedRanks(number)
    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(function, rank, ranks.member()) for rank in range(number)]
        results = [future.result() for future in futures]
    asked = {len(counts) for counts in ranks.sums.values()}
    assert asked <= {number}, "a rank asked what others did not"
    return results
