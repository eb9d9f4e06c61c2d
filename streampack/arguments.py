"""Checks of arguments: numbers, choices, and the names that a function takes."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from streampack.errors import ConfigError

if TYPE_CHECKING:
    from typing import Concatenate

    from typing_extensions import ParamSpec

    Arguments = ParamSpec("Arguments")

Made = TypeVar("Made", bound=Callable[..., Any])
Result = TypeVar("Result")


def is_number(value: object) -> bool:
    """Return True for a real number, numpy's included, that fits a float; False for a bool."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def is_whole(value: object) -> bool:
    """Return True for an integer, numpy's included; False for a bool and for 2.0."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole_number(
    name: str,
    value: Any,
    *,
    least: int | None = 1,
    most: int | None = None,
    otherwise: str = "",
) -> int:
    """Return an integer as an int, since JSON does not take numpy's integers.

    Args:
        name: name of the setting, or of a value in it, as in `epochs["web"]`.
        value: the value.
        least: smallest allowed value; None means no bound.
        most: largest allowed value; None means no bound.
        otherwise: alternative to mention in the error, as in "or None (endless)".

    Raises:
        ConfigError: the value is not an integer within the bounds.
    """
    if is_whole(value) and (least is None or least <= value) and (most is None or value <= most):
        return int(value)
    raise _refusal(name, value, f"an integer{_bounds(least, most)}", otherwise)


def whole_value(name: str, value: Any) -> int:
    """Return a number without a fraction as an int; accepts amounts written as 1e9.

    Raises:
        ConfigError: the value is not a number, or has a fraction.
    """
    if is_number(value) and math.isfinite(value) and value == int(value):
        return int(value)
    raise _refusal(name, value, "an integer", "")


def real_number(
    name: str,
    value: Any,
    *,
    least: float,
    most: float | None = None,
    otherwise: str = "",
) -> float:
    """Return a number as a float, or an int if it is one; see `whole_number` for arguments.

    Raises:
        ConfigError: the value is not a finite number within the bounds.
    """
    if is_number(value) and least <= value < math.inf and (most is None or value <= most):
        return int(value) if is_whole(value) else float(value)
    raise _refusal(name, value, f"a number{_bounds(least, most)}", otherwise)


def one_of(name: str, value: Any, known: Sequence[str]) -> None:
    """Raise `ConfigError` unless a setting's value is one of the strings in `known`."""
    if not isinstance(value, str) or value not in known:
        choices = ", ".join(map(repr, known))
        raise ConfigError(
            f"{name} must be one of {choices}, got {value!r:.80}.",
            "Pass one of these.",
            setting=name,
        )


def switch(name: str, value: Any) -> bool:
    """Return a bool, numpy's included; raise `ConfigError` for others, as text counts as True."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ConfigError(
        f"{name} must be a bool, got {value!r:.80}.", f"Pass {name}=True or False.", setting=name
    )


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f" of at least {least:,}" if most is None else f" from {least:,} to {most:,}"


def _refusal(name: str, value: Any, kind: str, otherwise: str) -> ConfigError:
    fact = f"{name} must be {kind}, got {value!r}."
    remedy = f"Pass such a number{', ' + otherwise if otherwise else ''}."
    return ConfigError(fact, remedy, setting=name.partition("[")[0])


def type_in_words(value: object) -> str:
    """Return the type of a value with its article: "an int", "a str", "None"."""
    return "None" if value is None else with_article(type(value).__name__)


def with_article(noun: str) -> str:
    """Return a noun with its article: "an int" for "int"."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


class Missing:
    """Descriptor for a method that a class lacks: its use raises an error with the call to write.

    The error is an `AttributeError`, so `hasattr` returns False, and a `TypeError`, as for `len` of
    an object without a length.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, kind: type) -> Missing:
        if instance is None:
            return self
        from streampack.wrong_calls.attributes import missing

        raise missing(instance, self._name)


class Explained:
    """Base of classes with attributes that users of other libraries look for in vain."""

    if not TYPE_CHECKING:  # type checkers report attributes that do not exist
        __len__ = Missing()
        __next__ = Missing()
        __getitem__ = Missing()

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # of Python and of libraries, which try names
                raise AttributeError(name)
            from streampack.wrong_calls.attributes import missing

            raise missing(self, name)

    def __bool__(self) -> bool:
        return True  # otherwise `bool()` would call `__len__`


def explained(obj: Made) -> Made:
    """Decorate a class or function to list its arguments in the `TypeError` for a wrong one."""
    if isinstance(obj, type):
        obj.__init__ = explained(obj.__init__)  # type: ignore[misc]
        return obj
    signature = _written_out(obj)
    bound = next(iter(signature.parameters), None) in ("self", "cls")

    @functools.wraps(obj)
    def checked(*args: Any, **kwargs: Any) -> Any:
        name = type(args[0]).__name__ if obj.__name__ == "__init__" else f"{obj.__qualname__}()"
        check_call(name, checked, args[1:] if bound else args, kwargs)
        return obj(*args, **kwargs)

    checked.__signature__ = signature  # type: ignore[attr-defined]
    return cast(Made, checked)


def _written_out(function: Callable[..., Any]) -> inspect.Signature:
    """Return a signature with the keys of ``**options: Unpack[SomeTypedDict]`` as arguments."""
    signature = inspect.signature(function)
    arguments: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(each.annotation))
        if unpacked is None:
            arguments.append(each)
            continue
        kinds = function.__globals__[unpacked[1]].__annotations__
        begin = sum(other.kind is not other.KEYWORD_ONLY for other in arguments)
        arguments[begin:begin] = [
            each.replace(
                name=name,
                kind=each.KEYWORD_ONLY,
                default=None,
                annotation=getattr(kind, "__forward_arg__", kind),
            )
            for name, kind in kinds.items()
        ]
    return signature.replace(parameters=arguments)


def takes_arguments_of(
    method: Callable[Concatenate[Any, Arguments], Any], *, but: str
) -> Callable[[Callable[..., Result]], Callable[Concatenate[Any, Arguments], Result]]:
    """Decorate a method with the signature of another, which it passes its arguments to.

    Args:
        method: the method that lists the arguments.
        but: the argument that the decorated method sets itself.
    """
    parameters = inspect.signature(method).parameters
    taken = [arg for name, arg in parameters.items() if name != but]

    def decorate(made: Callable[..., Result]) -> Callable[Concatenate[Any, Arguments], Result]:
        signature = inspect.signature(made).replace(parameters=taken)
        made.__signature__ = signature  # type: ignore[attr-defined]
        return made

    return decorate


def check_call(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise `TypeError`, with the call to write, for arguments that a function does not take.

    Args:
        name: name of the function or class in the error.
        function: the function, or the constructor of the class.
        args: positional arguments, without `self`.
        kwargs: keyword arguments.
    """
    taken = parameters(function)
    if any(arg.kind in (arg.VAR_POSITIONAL, arg.VAR_KEYWORD) for arg in taken):
        return
    by_place = [arg.name for arg in taken if arg.kind is not arg.KEYWORD_ONLY]
    needed = {arg.name for arg in taken if arg.default is arg.empty}
    passed = {*by_place[: len(args)], *kwargs}
    if len(args) > len(by_place) or not needed <= passed <= {arg.name for arg in taken}:
        from streampack.wrong_calls.calls import wrong_call

        raise wrong_call(name, taken, args, kwargs)


@functools.cache
def parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Return a function's parameters without `self`; cached, because inspection is slow."""
    parameters = inspect.signature(function).parameters
    return tuple(each for name, each in parameters.items() if name not in ("self", "cls"))
