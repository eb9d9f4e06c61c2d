"""Calls in threads, for requests that wait for a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_threads(function: Callable[[T], R], items: Iterable[T], threads: int = 16) -> list[R]:
    """Return ``[function(item) for item in items]``, with up to `threads` calls at a time.

    After an error, or an interrupt of the caller, no further call begins, and none is waited for.
    """
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    from streampack.storage.waiting import in_daemons

    return in_daemons(function, items, threads)
