"""Iteration over a user's iterable: through a copy, with or without its own state."""

from __future__ import annotations

import copy
import inspect
import json
import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from streampack.errors import ConfigError
from streampack.sources.items import has_state, is_by_index, kind_name


def has_exact_state(items: Any) -> bool:
    """Return True if the state of an iterable leads back to exactly the next item.

    Hugging Face datasets with a shuffle buffer have a state, but lose the rows in the buffer.
    Before version 5.2 the state of a mapped or filtered dataset may lead to other rows, before 3.6
    the state of any dataset.
    """
    stream = getattr(items, "_ex_iterable", None)
    if stream is None or "datasets" not in sys.modules:
        return has_state(items)
    inexact = ("BufferShuffled", *(() if has_version(5, 2) else ("Mapped", "Filtered")))
    return has_state(items) and has_version(3, 6) and not has_node(stream, inexact)


def has_version(*least: int) -> bool:
    """Return True if the imported datasets of Hugging Face has this version or a later one."""
    version: str = sys.modules["datasets"].__version__
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= least


def own_copy(items: Any, *, made_new: bool) -> Any:
    """Return a copy of `items` to iterate over, so that the user's object stays as it is.

    An iterable may keep its position in its attributes, or in their attributes, so the copy is
    deep. Data read by index keep no position, and are not copied.

    Args:
        items: the user's object, or the result of the user's function.
        made_new: True if `items` itself may be used where it cannot be copied.

    Raises:
        ConfigError: `items` has a state and cannot be copied.
    """
    if is_by_index(items) and not has_state(items) and not hasattr(items, "set_epoch"):
        return items
    try:
        return copy.deepcopy(items)
    except Exception as error:
        if made_new or not has_state(items):
            return items
        raise ConfigError(
            f"{kind_name(items)} has a state and cannot be copied: {error}.",
            "Pass a function (lane, lanes) -> iterable that makes a new one.",
            setting="data",
        ) from error


def has_node(node: Any, names: Sequence[str]) -> bool:
    """Return True if a step of a Hugging Face pipeline has a class that begins with a name."""
    if node is None or type(node).__name__.startswith(tuple(names)):
        return node is not None
    below = [getattr(node, "ex_iterable", None), *(getattr(node, "ex_iterables", None) or ())]
    return any(has_node(inner, names) for inner in below)


def iterate(items: Any) -> Iterator[Any]:
    """Return an iterator; a map-style dataset is read by index up to its length."""
    if not hasattr(items, "__iter__") and is_by_index(items):
        return (items[i] for i in range(len(items)))
    iterator: Iterator[Any] = iter(items)
    if iterator is items and not isinstance(items, Generator):
        return _by_next(iterator)
    return iterator


def _by_next(iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield items by `next` alone: an `iter` that restarts, as litdata's does, repeats items."""
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            return
        yield item


def check_state(state: Any, items: Any) -> None:
    """Raise `ConfigError` unless the state of `items` can be part of a checkpoint."""
    try:
        same = json.loads(json.dumps(state)) == state
    except (TypeError, ValueError):
        same = False
    if not same:
        raise ConfigError(
            f"The state_dict() of {kind_name(items)} must hold JSON values only.",
            "Let it return numbers, strings, lists and dicts only.",
            setting="data",
        )


def takes_lanes(function: Callable[..., Any]) -> bool:
    """Return True if a function takes (lane, lanes), False if it takes no argument.

    Raises:
        ConfigError: the function has another signature.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin has no signature
        return True
    for arguments in ((0, 1), ()):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise ConfigError(
        f"The function {getattr(function, '__name__', kind_name(function))} must take "
        f"no argument or (lane, lanes), but takes {signature}.",
        "Pass a function with one of these signatures, or the iterable itself.",
        setting="data",
    )
