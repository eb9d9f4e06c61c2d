"""Documents from Python objects, and the abilities of a user's iterable: state, index, order."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import TOKEN_DTYPES, Documents, offsets_of
from streampack.documents.fields import FieldSpec
from streampack.sources.base import Block
from streampack.sources.fields import RecordSchema
from streampack.sources.records import block_of

_LARGEST = 2**32 - 1


def item_size(item: Any, fields: RecordSchema) -> int:
    """Estimate the bytes of a document: one per character of text, four per id."""
    if fields.records is not None:
        return fields.records.size(item, fields.tokenized)
    try:
        document = item if fields.document is None else item[fields.document]
        if fields.several:
            return sum(4 * len(ids) for ids in document)
        return len(document) * (4 if fields.tokenized else 1)
    except (KeyError, IndexError, TypeError):
        return 0


def item_sizes(items: Sequence[Any], fields: RecordSchema) -> NDArray[np.int64]:
    """Return the (N,) int64 sizes of the items, in bytes."""
    if fields.records is None and fields.document is None:
        try:
            sizes = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
            return sizes * (4 if fields.tokenized else 1)
        except TypeError:
            pass  # one item is not a document; `item_block` names it
    return np.array([item_size(item, fields) for item in items], dtype=np.int64)


def item_block(
    items: Sequence[Any],
    fields: RecordSchema,
    origin: NDArray[np.void],
    types: FieldSpec,
    parse: Callable[[Any], Any] | None = None,
) -> tuple[Block, dict[int, str]]:
    """Make a block of the valid items, and a dict from index to reason for the others.

    `parse` makes a record of an item; None if items are records.
    """
    if fields.records is None and fields.tokenized and fields.document is None:
        types = FieldSpec()  # items are ids, without further fields
        if (whole := _joined_arrays(items, origin)) is not None:
            return whole, {}

    return block_of(items, fields, origin, types, parse)


def _joined_arrays(items: Sequence[Any], origin: NDArray[np.void]) -> Documents | None:
    """Make a block of arrays that share a token dtype and hold no negative id; None for others.

    One call checks them all: a check of each array takes three times as long as all other steps.
    """
    first = items[0] if len(items) else None
    if type(first) is not np.ndarray or first.dtype not in TOKEN_DTYPES:
        return None
    try:
        tokens = np.concatenate(items, dtype=first.dtype, casting="no")
    except (ValueError, TypeError, OverflowError, RuntimeError):
        return None  # one item is not an array; `record_block` reads or names it
    if tokens.ndim != 1 or (tokens.dtype.kind == "i" and len(tokens) and int(tokens.min()) < 0):
        return None
    lengths = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
    return Documents(tokens, offsets_of(lengths), origin)


def has_state(items: Any) -> bool:
    """Return True if an iterable can save and load its position, without further arguments."""
    try:
        inspect.signature(items.state_dict).bind()
    except (AttributeError, TypeError, ValueError):  # litdata's requires a number of samples
        return False
    return hasattr(items, "load_state_dict")


def is_by_index(data: Any) -> bool:
    """Return True if data can be read by index up to its length."""
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


#: Packages with arrays and columns that iterate in index order; ours has the rows of tables.
_ARRAYS = ("datasets", "numpy", "pandas", "polars", "pyarrow", "streampack", "torch")


def is_random_access(data: Any) -> bool:
    """Return True if the number of items is known and reading one by index has no side effect.

    Lists, arrays and map-style datasets are such data.
    """
    if not is_by_index(data) or has_state(data) or hasattr(data, "set_epoch"):
        return False
    if isinstance(data, Sequence) or not hasattr(data, "__iter__"):
        return True
    module = type(data).__module__
    # Iterable datasets of torch inherit `__getitem__`.
    return not module.startswith("torch.utils.") and module.partition(".")[0] in _ARRAYS


def kind_name(value: Any) -> str:
    """Return the class of a value with its module, for messages."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


_lock = threading.Lock()
_hidden: list[Any] = []  # the worker, once for each context that hides it, of any thread


@contextmanager
def outside_worker() -> Iterator[None]:
    """Hide torch's DataLoader worker from the iterables that are used inside the context.

    Datasets made for a plain DataLoader ask which worker they are in and yield that worker's part
    only. Here lanes have divided the data already, and dividing it twice would lose documents.
    """
    module: Any = sys.modules.get("torch.utils.data._utils.worker")
    if not _hidden and getattr(module, "_worker_info", None) is None:
        yield
        return
    with _lock:
        _hidden.append(_hidden[0] if _hidden else module._worker_info)
        module._worker_info = None
    try:
        yield
    finally:
        with _lock:
            module._worker_info = None if _hidden[1:] else _hidden[0]
            _hidden.pop()
