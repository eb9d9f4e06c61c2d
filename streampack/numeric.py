"""Settings that are numbers or words: what counts as one, and the refusal of what does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from streampack.errors import ConfigError


def is_number(value: object) -> bool:
    """True for what a float can hold of integers, floats and fractions, numpy's too.

    Not for True and False.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def is_whole(value: object) -> bool:
    """True for integers, numpy's too; not for True and False, nor for 2.0."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole_number(
    name: str,
    value: Any,
    consequence: str,
    *,
    least: int | None = 1,
    most: int | None = None,
    otherwise: str = "",
) -> int:
    """`value` as a plain int, which JSON and pickle take (numpy's integers they may not).

    Args:
        name: of the setting.
        consequence: why other values cannot work, a sentence.
        least, most: bounds, both included; None is no bound.
        otherwise: what else may be passed, as in "or None (endless)".

    Raises:
        ConfigError: it is no whole number within the bounds.
    """
    if is_whole(value) and (least is None or least <= value) and (most is None or value <= most):
        return int(value)
    raise _refusal(name, value, consequence, f"a whole number{_bounds(least, most)}", otherwise)


def real_number(
    name: str,
    value: Any,
    consequence: str,
    *,
    least: float,
    most: float | None = None,
    otherwise: str = "",
) -> float:
    """`value` as a plain float, or int if it is one; see `whole_number`.

    Raises:
        ConfigError: it is no finite number within the bounds.
    """
    if is_number(value) and least <= value < math.inf and (most is None or value <= most):
        return int(value) if is_whole(value) else float(value)
    raise _refusal(name, value, consequence, f"a number{_bounds(least, most)}", otherwise)


def one_of(name: str, value: Any, known: Sequence[str], consequence: str) -> None:
    """Raise `ConfigError` unless the setting `name` is one of the words that are known."""
    if not isinstance(value, str) or value not in known:
        remedy = f"Use one of {', '.join(map(repr, known))}."
        raise ConfigError(f"{name} is {value!r:.80}.", consequence, remedy)


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f" of at least {least:,}" if most is None else f" from {least:,} to {most:,}"


def _refusal(name: str, value: Any, consequence: str, kind: str, otherwise: str) -> ConfigError:
    remedy = f"Pass {kind}{', ' + otherwise if otherwise else ''}."
    return ConfigError(f"{name} is {value!r}.", consequence, remedy)
