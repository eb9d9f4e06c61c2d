"""Documents out of Python objects: lists, arrays and strings that a user or a parser made."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents import TOKEN_DTYPES, Documents, Texts, offsets_of
from streampack.errors import ConfigError

__all__ = [
    "BAD_ID",
    "Ahead",
    "BrokenItemError",
    "Fields",
    "check_fields",
    "integer_array",
    "item_block",
    "item_sizes",
    "joined_arrays",
    "outside_worker",
    "token_block",
]

BAD_ID = "it has an id that is negative or does not fit into 32 bits"

_LARGEST = 2**32 - 1
_worker_lock = threading.RLock()


class BrokenItemError(ValueError):
    """An item that is no document; the message says why."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Which field of an item that is a mapping holds what; None: items are the documents.

    Attributes:
        tokenized: whether documents are ids or text.
        document: the field of the document.
        loss_mask: the field of its loss mask, for ids.
    """

    tokenized: bool
    document: str | None = None
    loss_mask: str | None = None

    @property
    def plain_ids(self) -> bool:
        """True if every item is the ids of a document."""
        return self.tokenized and self.document is None

    def document_of(self, item: Any) -> Any:
        """The document in an item; `BrokenItemError` if it has none."""
        if self.document is None:
            return item
        if not isinstance(item, Mapping):
            raise BrokenItemError(f'it is {_a(item)}, not a mapping with a field "{self.document}"')
        if self.document not in item:
            raise BrokenItemError(f'it has no field "{self.document}"')
        return item[self.document]


class Ahead:
    """An iterator that can be given items back, and so be asked for several at a time."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._returned: list[Any] = []

    def some(self, most: int) -> list[Any]:
        """The next items: `most` of them, or fewer; none at the end."""
        if self._returned:
            several, self._returned = self._returned[:most], self._returned[most:]
            return several
        return list(itertools.islice(self._iterator, most))

    def give_back(self, items: list[Any]) -> None:
        """Take back the last of what `some` gave."""
        self._returned = items + self._returned


def check_fields(tokens: str | None, text: str | None, loss_mask: str | None) -> None:
    """Raise `ConfigError` if these names of fields do not go together."""
    if tokens is not None and text is not None:
        raise ConfigError(
            f"tokens is {tokens!r} and text is {text!r}.",
            "A document is one or the other.",
            "Name one of them.",
        )
    if loss_mask is not None and tokens is None:
        raise ConfigError(
            f"loss_mask is {loss_mask!r} and tokens is not given.",
            "A mask has one value per token id, in items that are mappings.",
            "Name the field of ids with tokens, or leave loss_mask out.",
        )


def item_sizes(items: list[Any], fields: Fields) -> list[int]:
    """About the bytes of each document: characters of text, four bytes per id."""
    width = 4 if fields.tokenized else 1
    if fields.document is None:
        try:
            return [length * width for length in map(len, items)]
        except TypeError:
            pass  # one of them is no document
    return [_size(item, fields) * width for item in items]


def _size(item: Any, fields: Fields) -> int:
    try:
        return len(fields.document_of(item))
    except (BrokenItemError, TypeError):
        return 0


def item_block(
    items: Sequence[Any], fields: Fields, origin: NDArray[np.void]
) -> tuple[Documents | Texts, dict[int, str]]:
    """A block from items, without the broken ones, and what is wrong with those, by place."""
    if fields.plain_ids:
        whole = joined_arrays(items, origin)
        if whole is not None:
            return whole, {}
    problems: dict[int, str] = {}
    good: list[int] = []
    texts: list[str] = []
    arrays: list[NDArray[Any]] = []
    masks: list[NDArray[np.bool_]] = []
    for i, item in enumerate(items):
        try:
            value = fields.document_of(item)
            if fields.tokenized:
                array = _array_of(value)
                if fields.loss_mask is not None:
                    masks.append(_mask_of(item, fields.loss_mask, len(array)))
                arrays.append(array)
            elif isinstance(value, str):
                texts.append(value)
            else:
                raise BrokenItemError(f"it is {_a(value)}, not text")
            good.append(i)
        except BrokenItemError as error:
            problems[i] = str(error)
    if not fields.tokenized:
        return Texts(texts, origin[good]), problems
    block, bad = token_block(arrays, origin[good], None if fields.loss_mask is None else masks)
    for k in np.flatnonzero(bad).tolist():
        problems[good[k]] = BAD_ID
    return (block.take(np.flatnonzero(~bad)) if bad.any() else block), problems


def joined_arrays(items: Sequence[Any], origin: NDArray[np.void]) -> Documents | None:
    """A block from arrays that share a token dtype, as `token_block` makes it; None for others.

    One call looks at all of them, and copies: a look at each takes longer than packing it.
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


def _array_of(value: Any) -> NDArray[Any]:
    array = integer_array(value)
    if isinstance(array, str):
        raise BrokenItemError(array)
    return array


def _mask_of(item: Any, field: str, length: int) -> NDArray[np.bool_]:
    if field not in item:
        raise BrokenItemError(f'it has no field "{field}"')
    try:
        mask = np.asarray(item[field])
    except (ValueError, TypeError, RuntimeError) as error:
        raise BrokenItemError(f"its loss mask is not a list ({error})") from error
    if mask.shape != (length,) or (length and mask.dtype.kind not in "biu"):
        raise BrokenItemError(f"its loss mask has shape {mask.shape} and dtype {mask.dtype}")
    return mask.astype(np.bool_)


@contextmanager
def outside_worker() -> Iterator[None]:
    """Hide torch's DataLoader worker from an iterable.

    Datasets made for a plain DataLoader ask which worker they are in and yield that worker's part
    only. Here lanes have divided the data already; dividing once more would lose documents.
    """
    module: Any = sys.modules.get("torch.utils.data._utils.worker")
    if module is None or getattr(module, "_worker_info", None) is None:
        yield
        return
    with _worker_lock:
        info = module._worker_info
        module._worker_info = None
        try:
            yield
        finally:
            module._worker_info = info


def integer_array(value: Any) -> NDArray[Any] | str:
    """The ids in a list or array as a flat integer array, or what is wrong with it."""
    if isinstance(value, str | bytes | dict) or not hasattr(value, "__len__"):
        return f"it is {_a(value)}, not a list of ids"
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        return f"it is not a list of ids ({error})"
    if array.ndim != 1:
        return f"its shape is {array.shape}, not one dimension"
    if array.size == 0 and not isinstance(value, np.ndarray):
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        return f"it holds {array.dtype} values, not integers"
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def token_block(
    arrays: Sequence[NDArray[Any]],
    origin: NDArray[np.void],
    masks: Sequence[NDArray[np.bool_]] | None = None,
) -> tuple[Documents, NDArray[np.bool_]]:
    """A block from integer arrays, and which documents (N,) have an id that does not fit.

    The arrays' dtype is kept if they share one of uint16, uint32 and int32; else it is uint32.
    """
    dtypes = {array.dtype for array in arrays}
    bad = np.zeros(len(arrays), dtype=np.bool_)
    for i, array in enumerate(arrays):
        if array.dtype.kind == "i" or array.dtype.itemsize > 4:
            bad[i] = len(array) > 0 and (int(array.min()) < 0 or int(array.max()) > _LARGEST)
    if len(dtypes) != 1 or dtypes.isdisjoint(TOKEN_DTYPES):
        arrays = [array.astype(np.uint32) for array in arrays]
    return Documents.from_arrays(arrays, origin, masks), bad


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
