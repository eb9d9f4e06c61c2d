"""Arguments: what counts as a number or a word, and which arguments a function takes."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar, cast

from streampack.errors import ConfigError

Made = TypeVar("Made", bound=Callable[..., Any])


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
    *,
    least: int | None = 1,
    most: int | None = None,
    otherwise: str = "",
) -> int:
    """`value` as a plain int, which JSON and pickle take (numpy's integers they may not).

    Args:
        name: of the setting, or of a value in it, as in `epochs["web"]`.
        least, most: bounds, both included; None is no bound.
        otherwise: what else may be passed, as in "or None (endless)".

    Raises:
        ConfigError: it is no whole number within the bounds.
    """
    if is_whole(value) and (least is None or least <= value) and (most is None or value <= most):
        return int(value)
    raise _refusal(name, value, f"a whole number{_bounds(least, most)}", otherwise)


def whole_value(name: str, value: Any) -> int:
    """`value` as an int if it equals one, as 1e9 does; for amounts that are often written so.

    Raises:
        ConfigError: it is no number, or has a fraction.
    """
    if is_number(value) and math.isfinite(value) and value == int(value):
        return int(value)
    raise _refusal(name, value, "a whole number", "")


def real_number(
    name: str,
    value: Any,
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
    raise _refusal(name, value, f"a number{_bounds(least, most)}", otherwise)


def one_of(name: str, value: Any, known: Sequence[str]) -> None:
    """Raise `ConfigError` unless the setting `name` is one of the words that are known."""
    if not isinstance(value, str) or value not in known:
        remedy = f"Use one of {', '.join(map(repr, known))}."
        raise ConfigError(f"{name} is {value!r:.80}.", remedy, setting=name)


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f" of at least {least:,}" if most is None else f" from {least:,} to {most:,}"


def _refusal(name: str, value: Any, kind: str, otherwise: str) -> ConfigError:
    remedy = f"Pass {kind}{', ' + otherwise if otherwise else ''}."
    return ConfigError(f"{name} is {value!r}.", remedy, setting=name.partition("[")[0])


def type_in_words(value: object) -> str:
    """The type of a value: "an int", "a str", "None"."""
    return "None" if value is None else with_article(type(value).__name__)


def with_article(noun: str) -> str:
    """A noun with its article: "an int" for "int"."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


#: Returns the place of an argument that belongs to another function or class; None if unknown.
Elsewhere = Callable[[str], str | None]


def explained(made: Made) -> Made:
    """The same class or function, whose `TypeError` for a wrong argument lists those it takes."""
    return _explained(made, lambda argument: None)


def explained_with(elsewhere: Elsewhere) -> Callable[[Made], Made]:
    """Return an `explained` that also names where else an argument belongs."""
    return functools.partial(_explained, elsewhere=elsewhere)


def _explained(made: Made, elsewhere: Elsewhere) -> Made:
    if isinstance(made, type):
        made.__init__ = _explained(made.__init__, elsewhere)  # type: ignore[misc]
        return made
    bound = next(iter(inspect.signature(made).parameters), None) in ("self", "cls")

    @functools.wraps(made)
    def checked(*args: Any, **kwargs: Any) -> Any:
        name = type(args[0]).__name__ if made.__name__ == "__init__" else f"{made.__qualname__}()"
        check_call(name, made, args[1:] if bound else args, kwargs, elsewhere)
        return made(*args, **kwargs)

    return cast(Made, checked)


def check_call(
    name: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    elsewhere: Elsewhere = lambda argument: None,
) -> None:
    """Raise `TypeError`, with those it takes, for arguments that a function does not take.

    Args:
        name: of what is called.
        function: it, or the constructor of a class.
        args, kwargs: its arguments by position, without `self`, and by name.
        elsewhere: names where an unknown argument belongs.
    """
    taken = _parameters(function)
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in taken):
        return
    names = [one.name for one in taken]
    by_place = [one.name for one in taken if one.kind is not one.KEYWORD_ONLY]
    if len(args) > len(by_place):
        first = [f"{key}={args[len(by_place)]!r:.80}" for key in names[len(by_place) :][:1]]
        call = f"{name.removesuffix('()')}({', '.join([*by_place, *first])})"
        raise TypeError(f"{name} takes its settings by name. Write {call}, for example.")
    given = {*by_place[: len(args)], *kwargs}
    wrong = [
        f"has no argument {key!r}: {elsewhere(key) or 'it takes ' + ', '.join(names)}."
        for key in kwargs
        if key not in names
    ][:1]
    wrong += [
        f"needs {one.name}." for one in taken if one.default is one.empty and one.name not in given
    ]
    if wrong:
        raise TypeError(f"{name} {' It '.join(wrong)}")


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Those of a function, without `self`; looking them up takes longer than most calls."""
    parameters = inspect.signature(function).parameters
    return tuple(one for name, one in parameters.items() if name not in ("self", "cls"))
