"""The number of examples of a drawn test: few in the gate, many at night."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from hypothesis import settings

#: Examples of a test without a number, in the gate and at night; `drawn` keeps their proportion.
GATE, NIGHT = 12, 800
_USUAL, _LEAST = 100, 5
_GOLDEN = (5**0.5 - 1) / 2

Case = TypeVar("Case")


def drawn(examples: int, **options: Any) -> settings:
    """Return settings for a drawn test: an eighth of `examples` in the gate, eight times at night.

    At least five are drawn, unless `examples` is less. In the gate the examples are the same in
    every run, at night they are new (the profiles in `tests/conftest.py`).
    """
    in_profile = examples * settings().max_examples // _USUAL
    return settings(max_examples=max(in_profile, min(examples, _LEAST)), **options)


def sampled(cases: Iterable[Case], part: float = 1 / 3) -> Iterator[Case]:
    """Yield a part of the cases in the gate, and all at night; the first one always.

    They are spread evenly and at no fixed distance, so that every lane has some. Tests that call
    this have the marker `sampled`, by which the night selects them.
    """
    is_night = settings().max_examples >= NIGHT
    for number, case in enumerate(cases):
        if is_night or number * _GOLDEN % 1 < part:
            yield case
