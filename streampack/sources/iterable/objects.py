"""What can be done with a user's iterable: pass over it, copy it, trust its state."""

from __future__ import annotations

import copy
import inspect
import json
import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from streampack.errors import ConfigError


def has_state(items: Any) -> bool:
    """True if an iterable can say where it is, and go on from there, without more arguments."""
    if not (hasattr(items, "state_dict") and hasattr(items, "load_state_dict")):
        return False
    try:
        inspect.signature(items.state_dict).bind()
    except (TypeError, ValueError):  # that of litdata wants to know what a loader has taken
        return False
    return True


#: Versions of datasets, and the next without the fault: of mapped and filtered streams; of all.
_AHEAD = (((3, 3), (4, 2)), ((4, 7), (5, 2)))
_ALL_AHEAD = ((3, 4), (3, 6))


def has_exact_state(items: Any) -> bool:
    """True if the state of an iterable leads back to exactly the next item.

    Hugging Face datasets with a shuffle buffer have a state, but lose what is in the buffer. In
    some versions the state of a mapped or filtered dataset, or that of any, leads to other rows.
    """
    if not has_state(items):
        return False
    stream = getattr(items, "_ex_iterable", None)
    library = sys.modules.get("datasets")
    if stream is None or library is None:
        return True
    version = _version(library.__version__)
    if _ALL_AHEAD[0] <= version < _ALL_AHEAD[1]:
        return False
    inexact = ["BufferShuffled"]
    if any(first <= version < fixed for first, fixed in _AHEAD):
        inexact += ["MappedExamples", "FilteredExamples"]
    return not _has_node(stream, inexact)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def own_copy(items: Any, *, made_new: bool) -> Any:
    """What a reader passes over instead of `items`, so that these stay as they are.

    An iterable may count in its attributes how far it is, or in theirs, so it is copied deeply.
    What is read by index counts nothing, and is not copied.

    Args:
        items: what the user passed, or what a function of the user's returned.
        made_new: it may be used itself if it cannot be copied.

    Raises:
        ConfigError: it has a state and cannot be copied.
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
            "Its state would be mixed up between readers.",
            "Pass a function (lane, lanes) -> iterable that makes a new one.",
        ) from error


def _has_node(node: Any, names: Sequence[str]) -> bool:
    """True if a step of a Hugging Face pipeline has one of these in the name of its class."""
    if node is None:
        return False
    if any(name in type(node).__name__ for name in names):
        return True
    below = [getattr(node, "ex_iterable", None), *(getattr(node, "ex_iterables", None) or ())]
    return any(_has_node(inner, names) for inner in below)


def is_by_index(data: Any) -> bool:
    """True if data can be read by index up to its length."""
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


#: Whose arrays and columns are iterated in the order of their numbers; ours are the rows of tables.
_ARRAYS = ("datasets", "numpy", "pandas", "polars", "pyarrow", "streampack", "torch")


def is_random_access(data: Any) -> bool:
    """True if the number of items is known and asking for any of them changes nothing.

    So it is of lists, arrays and map-style datasets.
    """
    if not is_by_index(data) or has_state(data) or hasattr(data, "set_epoch"):
        return False
    if isinstance(data, Sequence) or not hasattr(data, "__iter__"):
        return True
    module = type(data).__module__
    if module.startswith("torch.utils."):  # iterable datasets, which inherit `__getitem__`
        return False
    return module.partition(".")[0] in _ARRAYS


def iterate(items: Any) -> Iterator[Any]:
    """An iterator; a map-style dataset is read by index up to its length."""
    if not hasattr(items, "__iter__") and is_by_index(items):
        return (items[i] for i in range(len(items)))
    iterator: Iterator[Any] = iter(items)
    if iterator is items and not isinstance(items, Generator):
        return _by_next(iterator)
    return iterator


def _by_next(iterator: Iterator[Any]) -> Iterator[Any]:
    """Its items by `next` alone: where `iter` begins it again (litdata's), a second one repeats."""
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
            f"The state_dict() of {kind_name(items)} holds more than JSON can.",
            "It cannot be part of a checkpoint.",
            "Let it return numbers, strings, lists and dicts only, or pass an iterable without "
            "state_dict, which is then read again from its beginning.",
        )


def takes_lanes(function: Callable[..., Any]) -> bool:
    """True if a function is called with (lane, lanes), False if with nothing.

    Raises:
        ConfigError: it can be called with neither.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a builtin
        return True
    for arguments in ((0, 1), ()):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise ConfigError(
        f"The function {getattr(function, '__name__', kind_name(function))} takes {signature}.",
        "It is called with (lane, lanes), or with nothing, to make an iterable.",
        "Pass a function with one of these signatures, or the iterable itself.",
    )


def kind_name(value: Any) -> str:
    """The class of a value with its module, for messages."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
