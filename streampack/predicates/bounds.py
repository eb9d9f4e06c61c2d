"""Conditions on a group of rows of which only the smallest and largest values are known.

A group is left out only if no row of it can satisfy the condition. Whatever is not certain may
match, because the rows themselves are compared where they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from streampack.predicates.text import Compared, Joined, Tree

_EXACT = 1 << 53  # integers up to here are the same as floats


class Bounds(NamedTuple):
    """Values of a column in a group of rows.

    Attributes:
        low, high: no value that is not null lies outside; None if it is unknown. Texts may be
            UTF-8, cut to a shorter text that is no larger (low) or no smaller (high).
        only_null: True if all values are null.
    """

    low: Any = None
    high: Any = None
    only_null: bool = False


def may_match(tree: Tree, bounds: Callable[[str], Bounds | None]) -> bool:
    """Return False if no row of a group can satisfy a condition.

    Args:
        tree: the condition.
        bounds: returns the bounds of a column, None if they are unknown.
    """
    if isinstance(tree, Joined):
        each = (may_match(part, bounds) for part in tree.parts)
        return all(each) if tree.operator == "and" else any(each)
    if not isinstance(tree, Compared):
        return True
    known = bounds(tree.column)
    if known is None:
        return True
    if known.only_null:
        return False
    if known.low is None or known.high is None:
        return True
    sides = [_comparable(side, tree.value) for side in (known.low, known.high)]
    if None in sides:
        return True
    (low, value), (high, _) = sides  # type: ignore[misc]
    try:
        _ = low <= value <= high
    except TypeError:  # times with and without a zone
        return True
    satisfiable: dict[str, bool] = {
        "==": low <= value <= high,
        "!=": True,
        "<": low < value,
        "<=": low <= value,
        ">": high > value,
        ">=": high >= value,
    }
    return satisfiable[tree.operator]


def _comparable(bound: Any, value: Any) -> tuple[Any, Any] | None:
    """Return a bound and a value that Python compares as Arrow does; None if it may not."""
    if isinstance(bound, bytes) and isinstance(value, str):
        return bound, value.encode()
    if type(bound) is type(value):
        return None if bound != bound or value != value else (bound, value)
    numbers = {type(bound), type(value)} == {int, float}
    if numbers and abs(bound) <= _EXACT and abs(value) <= _EXACT:
        return bound, value
    return None
