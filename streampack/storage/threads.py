"""Calls in threads, for requests that wait for a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_threads(function: Callable[[T], R], items: Iterable[T], threads: int = 16) -> list[R]:
    """Return ``[function(item) for item in items]``, with up to `threads` calls at a time."""
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    results: list[R] = []
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        for start in range(0, len(items), 4096):  # a million waiting calls would take a gigabyte
            results += pool.map(function, items[start : start + 4096])
    return results
