"""Documents from Python objects: lists, arrays and strings that a user or a library made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words
from streampack.documents.blocks import TOKEN_DTYPES, Documents, Texts
from streampack.documents.fields import FieldTypes
from streampack.documents.ragged import offsets_of
from streampack.reading.base import Block
from streampack.reading.fields import Fields
from streampack.reading.integer_arrays import BAD_ID
from streampack.reading.record_block import Read, record_block
from streampack.reading.records import BrokenDocumentError, require_field

_LARGEST = 2**32 - 1


def item_size(item: Any, fields: Fields) -> int:
    """About the bytes of a document: one per character of text, four per id."""
    if fields.records is not None:
        return fields.records.size(item, fields.tokenized)
    try:
        document = _document_of(item, fields.document)
        if fields.several:
            return sum(4 * len(ids) for ids in document)
        return len(document) * (4 if fields.tokenized else 1)
    except (BrokenDocumentError, TypeError):
        return 0


def item_sizes(items: Sequence[Any], fields: Fields) -> list[int]:
    """The size of each item."""
    if fields.records is not None:
        return [fields.records.size(item, fields.tokenized) for item in items]
    if fields.document is None:
        width = 4 if fields.tokenized else 1
        try:
            return [len(item) * width for item in items]
        except TypeError:
            pass  # one of them is no document: it will be found and named
    return [item_size(item, fields) for item in items]


def item_block(
    items: Sequence[Any], fields: Fields, origin: NDArray[np.void], types: FieldTypes
) -> tuple[Block, dict[int, str]]:
    """A block from items, without the broken ones, and what is wrong with those, by number."""
    if fields.records is not None:
        return fields.records.block(items, origin, types, fields.tokenized)
    if fields.tokenized and fields.document is None:
        types = FieldTypes()  # items are ids and nothing else
        if (whole := _joined_arrays(items, origin)) is not None:
            return whole, {}

    def read(item: Any) -> Read:
        value = _document_of(item, fields.document)
        if fields.tokenized:
            return item, ids_of(value) if fields.document is None else documents_of(value)
        if not isinstance(value, str):
            raise BrokenDocumentError(f"is {type_in_words(value)}, not text")
        return item, value

    kind = Documents if fields.tokenized else Texts
    return record_block(items, read, kind, origin, types, fields.loss_masks, fields.unread)


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


def _document_of(item: Any, field: str | None) -> Any:
    """The document in an item; None for `field` says that the item is the document."""
    if field is None:
        return item
    if not isinstance(item, Mapping):
        raise BrokenDocumentError(f'is {type_in_words(item)}, not a mapping with a field "{field}"')
    require_field(item, field)
    return item[field]


def documents_of(value: Any) -> NDArray[Any] | list[NDArray[Any]]:
    """The ids in a list or array; in a list of such, those of each of several documents."""
    return [ids_of(ids) for ids in value] if is_several(value) else ids_of(value)


def is_several(value: Any) -> bool:
    """True for a list of lists or arrays."""
    kinds = (list, tuple, np.ndarray)
    return isinstance(value, kinds) and len(value) > 0 and isinstance(value[0], kinds)


def ids_of(value: Any) -> NDArray[Any]:
    """The ids in a list or array as a flat integer array; all of them fit into uint32."""
    if isinstance(value, str | bytes | dict) or not hasattr(value, "__len__"):
        raise BrokenDocumentError(f"is {type_in_words(value)}, not a list of ids")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise BrokenDocumentError(f"is no list of integers ({error})") from error
    if array.ndim != 1:
        raise BrokenDocumentError(f"has the shape {array.shape}, not one dimension")
    if array.size == 0 and not isinstance(value, np.ndarray):
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise BrokenDocumentError(f"holds {array.dtype} values, not integers")
    may_be_wrong = array.size > 0 and (array.dtype.kind == "i" or array.dtype.itemsize > 4)
    if may_be_wrong and (int(array.min()) < 0 or int(array.max()) > _LARGEST):
        raise BrokenDocumentError(BAD_ID)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
