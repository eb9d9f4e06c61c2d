"""The number of examples of a drawn test: few in the gate, many at night."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

#: Examples of a test without a number, in the gate and at night; `drawn` keeps their proportion.
GATE, NIGHT = 12, 800
_USUAL, _LEAST = 100, 5


def drawn(examples: int, **options: Any) -> settings:
    """Return settings for a drawn test: an eighth of `examples` in the gate, eight times at night.

    At least five are drawn, unless `examples` is less. In the gate the examples are the same in
    every run, at night they are new (the profiles in `tests/conftest.py`).
    """
    in_profile = examples * settings().max_examples // _USUAL
    return settings(max_examples=max(in_profile, min(examples, _LEAST)), **options)
