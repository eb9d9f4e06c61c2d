"""Documents from Python objects, and what can be done with a user's iterable of them."""

from __future__ import annotations

import copy
import inspect
import json
import re
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import TOKEN_DTYPES, Documents, offsets_of
from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError
from streampack.sources.base import Block
from streampack.sources.fields import Fields
from streampack.sources.records import block_of

_LARGEST = 2**32 - 1


def item_size(item: Any, fields: Fields) -> int:
    """About the bytes of a document: one per character of text, four per id."""
    if fields.records is not None:
        return fields.records.size(item, fields.tokenized)
    try:
        document = item if fields.document is None else item[fields.document]
        if fields.several:
            return sum(4 * len(ids) for ids in document)
        return len(document) * (4 if fields.tokenized else 1)
    except (KeyError, IndexError, TypeError):
        return 0


def item_sizes(items: Sequence[Any], fields: Fields) -> NDArray[np.int64]:
    """(N,) int64, the size of each item."""
    if fields.records is None and fields.document is None:
        try:
            sizes = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
            return sizes * (4 if fields.tokenized else 1)
        except TypeError:
            pass  # one of them is no document: it will be found and named
    return np.array([item_size(item, fields) for item in items], dtype=np.int64)


def item_block(
    items: Sequence[Any],
    fields: Fields,
    origin: NDArray[np.void],
    types: FieldTypes,
    parse: Callable[[Any], Any] | None = None,
) -> tuple[Block, dict[int, str]]:
    """A block from items, without the broken ones, and what is wrong with those, by number.

    `parse` makes a record of an item; None says that it is one.
    """
    if fields.records is None and fields.tokenized and fields.document is None:
        types = FieldTypes()  # items are ids and nothing else
        if (whole := _joined_arrays(items, origin)) is not None:
            return whole, {}

    return block_of(items, fields, origin, types, parse)


def _joined_arrays(items: Sequence[Any], origin: NDArray[np.void]) -> Documents | None:
    """A block from arrays that share a token dtype and hold no negative id; None for others.

    One call looks at all of them: a look at each takes three times as long as all the rest.
    """
    first = items[0] if len(items) else None
    if type(first) is not np.ndarray or first.dtype not in TOKEN_DTYPES:
        return None
    try:
        tokens = np.concatenate(items, dtype=first.dtype, casting="no")
    except (ValueError, TypeError, OverflowError, RuntimeError):
        return None  # one of them is something else: it will be found and named
    if tokens.ndim != 1 or (tokens.dtype.kind == "i" and len(tokens) and int(tokens.min()) < 0):
        return None
    lengths = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
    return Documents(tokens, offsets_of(lengths), origin)


def has_state(items: Any) -> bool:
    """True if an iterable can say where it is, and go on from there, without more arguments."""
    if not (hasattr(items, "state_dict") and hasattr(items, "load_state_dict")):
        return False
    try:
        inspect.signature(items.state_dict).bind()
    except (TypeError, ValueError):  # that of litdata wants to know what a loader has taken
        return False
    return True


def has_exact_state(items: Any) -> bool:
    """True if the state of an iterable leads back to exactly the next item.

    Hugging Face datasets with a shuffle buffer have a state, but lose what is in the buffer. Before
    version 5.2 that of a mapped or filtered one may lead to other rows, before 3.6 that of any.
    """
    stream, library = getattr(items, "_ex_iterable", None), sys.modules.get("datasets")
    if stream is None or library is None:
        return has_state(items)
    version = [int(part) for part in re.findall(r"\d+", library.__version__)[:2]]
    inexact = ("BufferShuffled", *(("Mapped", "Filtered") if version < [5, 2] else ()))
    return has_state(items) and version >= [3, 6] and not has_node(stream, inexact)


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
            "Pass a function (lane, lanes) -> iterable that makes a new one.",
            setting="data",
        ) from error


def has_node(node: Any, names: Sequence[str]) -> bool:
    """True if the class of a step of a Hugging Face pipeline begins with one of these names."""
    if node is None or type(node).__name__.startswith(tuple(names)):
        return node is not None
    below = [getattr(node, "ex_iterable", None), *(getattr(node, "ex_iterables", None) or ())]
    return any(has_node(inner, names) for inner in below)


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
            "Let it return numbers, strings, lists and dicts only.",
            setting="data",
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
        "Pass a function with one of these signatures, or the iterable itself.",
        setting="data",
    )


def kind_name(value: Any) -> str:
    """The class of a value with its module, for messages."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


_lock = threading.RLock()


@contextmanager
def outside_worker() -> Iterator[None]:
    """Hide torch's DataLoader worker from the iterables that are used inside the context.

    Datasets made for a plain DataLoader ask which worker they are in and yield that worker's part
    only. Here lanes have divided the data already, and dividing it twice would lose documents.
    """
    module: Any = sys.modules.get("torch.utils.data._utils.worker")
    if module is None or getattr(module, "_worker_info", None) is None:
        yield
        return
    with _lock:
        info = module._worker_info
        module._worker_info = None
        try:
            yield
        finally:
            module._worker_info = info
