"""What a user says of the shares of a mixture: weights, over the run or not, or a temperature."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise

from streampack.errors import ConfigError

Weights = Mapping[str, float]


def checked_weights(
    weights: Weights | Sequence[tuple[int, Weights]], names: list[str]
) -> list[tuple[int, list[Fraction]]]:
    """Pairs (tokens of the run, weights in the order of `names`), ascending from 0.

    Raises:
        ConfigError: they are not understood, not of these sources, or cannot be shares.
    """
    try:
        pairs = [(0, weights)] if isinstance(weights, Mapping) else [(at, w) for at, w in weights]
        understood = all(
            isinstance(at, numbers.Real)
            and isinstance(given, Mapping)
            and all(isinstance(weight, numbers.Real) for weight in given.values())
            for at, given in pairs
        )
    except (TypeError, ValueError):
        understood = False
    if not understood:
        raise ConfigError(
            f"weights is {weights!r:.200}.",
            "It does not say which share of the tokens each source has.",
            "Pass a dict of numbers by name, or pairs (tokens of the run, such a dict).",
        )
    places = [at for at, _ in pairs]
    if not places or places[0] != 0 or any(a >= b for a, b in pairwise(places)):
        raise ConfigError(
            f"The weights are given at {places} tokens of the run.",
            "Places must begin at 0 and ascend.",
            "Begin with (0, {...}), and name each later place once.",
        )
    return [(int(at), _weights(at, given, names)) for at, given in pairs]


def _weights(at: int, given: Weights, names: list[str]) -> list[Fraction]:
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    if missing or unknown:
        raise ConfigError(
            f"The weights at {at} tokens "
            + " and ".join(
                f"{verb} {', '.join(found)}"
                for verb, found in (("lack", missing), ("also name", unknown))
                if found
            )
            + ".",
            f"The sources are {', '.join(names)}.",
            "Give every source a weight, 0 for none.",
        )
    values = [given[name] for name in names]
    if not all(math.isfinite(value) and value >= 0 for value in values) or not any(values):
        raise ConfigError(
            f"The weights at {at} tokens are {dict(given)}.",
            "They cannot be shares.",
            "Use finite numbers, none negative and not all 0.",
        )
    return [Fraction(value) for value in values]


def tempered(sizes: list[int], temperature: float) -> list[Fraction]:
    """In proportion to size ** (1 / temperature), the same on any machine.

    A float's power may differ in its last bit between C libraries; `Decimal`'s does not.
    """
    context = Context(prec=30)
    power = context.divide(Decimal(1), Decimal(temperature))
    largest = max(sizes)
    logs = [context.ln(context.divide(Decimal(size), Decimal(largest))) for size in sizes]
    return [Fraction(context.exp(context.multiply(log, power))) for log in logs]
