"""Few examples and cases of a test in the gate, many examples and all cases at night."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings

#: Examples of a test without a number, in the gate and at night; `drawn` keeps their proportion.
GATE, NIGHT = 12, 800
_USUAL = 100
_GOLDEN = (5**0.5 - 1) / 2

Case = TypeVar("Case")


def drawn(examples: int, *, least: int = 5, **options: Any) -> settings:
    """Return settings for a drawn test: an eighth of `examples` in the gate, eight times at night.

    At least `least` are drawn, unless `examples` is less: of dear examples two. In the gate the
    examples are the same in every run, at night they are new (the profiles in `tests/conftest.py`).
    """
    in_profile = examples * settings().max_examples // _USUAL
    return settings(max_examples=max(in_profile, min(examples, least)), **options)


def sampled(cases: Iterable[Case], part: float = 1 / 3) -> Iterator[Case]:
    """Yield a part of the cases in the gate, and all at night; the first one always.

    They are spread evenly and at no fixed distance, so that every lane has some. Tests that call
    this have the marker `sampled`, by which the night selects them.
    """
    is_night = settings().max_examples >= NIGHT
    for number, case in enumerate(cases):
        if is_night or number * _GOLDEN % 1 < part:
            yield case


def leave_to_the_night(items: Iterable[pytest.Item]) -> None:
    """Mark parametrized cases as slow that ``pytest.mark.sampled(few)`` leaves to the night.

    `few` is the number of cases that the gate runs, or "each": as many that each value of each
    parameter is in one of them.
    """
    tests = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is not None and marker.args and item.get_closest_marker("slow") is None:
            tests[item.parent, item.originalname].append(item)  # type: ignore[attr-defined]
    for cases in tests.values():
        few = cases[0].get_closest_marker("sampled").args[0]  # type: ignore[union-attr]
        values = [list(case.callspec.params.items()) for case in cases]  # type: ignore[attr-defined]
        in_gate = covering(values) if few == "each" else spread(len(cases), few)
        for number in set(range(len(cases))) - in_gate:
            cases[number].add_marker(pytest.mark.slow)


def spread(cases: int, few: int) -> set[int]:
    """Return so many numbers below `cases`, evenly spread, with the first."""
    return {number * cases // few for number in range(few)}


def covering(cases: Sequence[Sequence[tuple[str, Any]]]) -> set[int]:
    """Return the numbers of few cases in which each value of each parameter is."""
    values = [{(name, id(value)) for name, value in case} for case in cases]
    missing, in_gate = set().union(*values), set()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(values[number] & missing))
        in_gate.add(best)
        missing -= values[best]
    return in_gate
