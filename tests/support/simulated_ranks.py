"""A function on every one of several simulated ranks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from streampack import SimulatedRanks

Value = TypeVar("Value")


def on_ranks(number: int, function: Callable[[int, Any], Value]) -> list[Value]:
    """``function(rank, member)`` on so many ranks at once."""
    ranks: Any = SimulatedRanks(number)
    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(function, rank, ranks[rank]) for rank in range(number)]
        results = [future.result() for future in futures]
    assert len({ranks[rank].asked for rank in range(number)}) == 1, (
        "a rank asked what others did not"
    )
    return results
