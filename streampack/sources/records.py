"""Records (JSON, rows, objects in memory) as blocks of texts, or of token ids with masks.

A record without a valid document raises `BrokenDocumentError`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words
from streampack.documents.blocks import (
    TOKEN_DTYPES,
    Documents,
    Texts,
    joined_groups,
    offsets_of,
)
from streampack.documents.fields import FieldSpec
from streampack.sources.fields import ATTENTION_MASK, LABELS, LOSS_FIELDS, RecordSchema, with_masks

if TYPE_CHECKING:
    from streampack.chats.conversations import Conversations

#: Reason for rejecting a document with an id outside of the range of token ids.
BAD_ID = "has an id that is negative or does not fit into 32 bits"


class BrokenDocumentError(ValueError):
    """A record, row or file without a valid document.

    The message ends a sentence that begins with its name: "Row 7 of a.parquet is null".
    """


class DamagedFileError(Exception):
    """A file contradicts itself; the message is a clause that names the contradiction."""


def require_field(record: Mapping[str, Any], name: str) -> None:
    """Raise `BrokenDocumentError` unless the record has this field."""
    if name not in record:
        names = ", ".join(f'"{name}"' for name in list(record)[:10]) or "none"
        raise BrokenDocumentError(f'has no field "{name}" (it has {names})')


def is_several(value: Any) -> bool:
    """Return True for a list of lists or arrays: the ids of several documents."""
    kinds = (list, tuple, np.ndarray)
    is_list = isinstance(value, kinds) and getattr(value, "shape", None) != ()
    return is_list and len(value) > 0 and isinstance(value[0], kinds)


def kind_of(value: Any) -> str:
    """Return the kind of a record's value: "tokens", "mask" (of booleans), "text" or "".

    A list of lists of ids is "several": documents that form a group.
    """
    if isinstance(value, str):
        return "text"
    if is_several(value):
        return "several" if kind_of(value[0]) == "tokens" else ""
    if isinstance(value, list | tuple):
        if not value:
            return ""
        value = value[:1]
    try:
        return "tokens" if ids_of(value) is not None else ""
    except BrokenDocumentError:
        masks = isinstance(value, list | tuple) and isinstance(value[0], bool)
        return "mask" if masks or getattr(value, "dtype", None) == np.bool_ else ""


def document_in(record: Any, field: str | None, tokenized: bool, data: bytes = b"") -> Read:
    """Return a record and its document: a text, ids, or a list of the ids of several documents.

    Args:
        record: a mapping with the document in `field`, or the document itself.
        field: name of the document's field; None if the record is itself the document.
        tokenized: True to expect token ids, False to expect text.
        data: the JSON text of the record, if it was parsed from JSON.
    """
    value, where = record, ""
    if field is not None:
        if not isinstance(record, Mapping):
            what = type_in_words(record)
            raise BrokenDocumentError(f'is {what}, not a mapping with a field "{field}"')
        require_field(record, field)
        value, where = record[field], f' in "{field}"'
    if tokenized:
        if field is not None and is_several(value):
            return record, [ids_of(ids, where, data) for ids in value]
        return record, ids_of(value, where, data)
    if not isinstance(value, str):
        chats = "; sources.Chat reads conversations" if isinstance(value, list) else ""
        what = f"has {type_in_words(value)}{where} where text was expected{chats}"
        raise BrokenDocumentError(what)
    if b"\\u" in data:  # an escape can name half a character, which no tokenizer takes
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BrokenDocumentError(f"has one half of a surrogate pair{where}") from None
    return record, value


def ids_of(value: Any, where: str = "", data: bytes = b"") -> NDArray[Any]:
    """Return the (T,) token ids of a list or array, as integers that fit into uint32.

    Args:
        value: the list or array.
        where: position of the value in its record, for messages.
        data: the JSON text with the value, if it was parsed from JSON.
    """
    if isinstance(value, list | tuple):
        # Checking every id takes as long as parsing it, and most records have no booleans.
        may_be_bools = not data or b"true" in data or b"false" in data
        if may_be_bools and bool in map(type, value):
            raise BrokenDocumentError(f"has true or false{where} where ids were expected")
        try:
            # `array` accepts nothing but whole numbers in its range; numpy would round.
            return np.frombuffer(array("I", value), dtype=np.uint32)
        except OverflowError:
            raise BrokenDocumentError(BAD_ID + where) from None
        except (TypeError, ValueError) as error:
            raise BrokenDocumentError(f"has a wrong id{where} ({error})") from None
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        raise BrokenDocumentError(f"has {type_in_words(value)}{where} where ids were expected")
    try:
        ids = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise BrokenDocumentError(f"has no list of integers{where} ({error})") from error
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        what = f"an array of {ids.dtype} and shape {ids.shape}"
        raise BrokenDocumentError(f"has {what}{where} where ids were expected")
    fits = ids.dtype.kind == "u" and ids.dtype.itemsize <= 4
    if len(ids) and not fits and (int(ids.min()) < 0 or int(ids.max()) >= 1 << 32):
        raise BrokenDocumentError(BAD_ID + where)
    return ids.astype(ids.dtype.newbyteorder("=") if len(ids) else np.uint32, copy=False)


Item = TypeVar("Item")

_UNLEARNT = "has no token that carries loss"

#: A record and its content: ids, a list of the ids of several documents, a text, a conversation.
Read = tuple[Any, Any]


def block_of(
    items: Iterable[Any],
    fields: RecordSchema,
    origin: NDArray[np.void],
    types: FieldSpec,
    parse: Callable[[Any], Any] | None = None,
) -> tuple[Documents | Texts | Conversations, dict[int, str]]:
    """Make a block of the valid items among N, and a dict from index to reason for the others.

    Args:
        items: N records, documents, or inputs of `parse`; an item of bytes is a record's JSON.
        fields: the fields to read of each record.
        origin, types: as for `record_block`.
    """
    if fields.records is not None:
        return fields.records.block(items, origin, types, fields.tokenized, parse)

    def read(item: Any) -> Read:
        record = item if parse is None else parse(item)
        data = item if parse is not None and isinstance(item, bytes) else b""
        return document_in(record, fields.document, fields.tokenized, data)

    kind = Documents if fields.tokenized else Texts
    return record_block(items, read, kind, origin, types, fields.loss_masks, fields.unread)


def record_block(
    items: Iterable[Item],
    read: Callable[[Item], Read],
    kind: type[Any],
    origin: NDArray[np.void],
    types: FieldSpec,
    masks: Collection[str] | None = (),
    unread: Collection[str] = (),
) -> tuple[Documents | Texts | Conversations, dict[int, str]]:
    """Make a block of the valid items among N, and a dict from index to reason for the others.

    Args:
        items: N items that `read` accepts.
        read: returns an item's record and content; raises `BrokenDocumentError` where an item has
            no valid document.
        kind: `Documents`, `Texts` or `Conversations`. Ids of several dtypes, or of one that is
            no token dtype, become uint32.
        origin: (N,) of dtype `ORIGIN`.
        types: the fields to read beside the document.
        masks: the fields with loss masks or labels of ids. None reads every field of `LOSS_FIELDS`
            that a record has; a record needs at least one, and a token that carries loss.
        unread: fields that a record of ids must not have; see `RecordSchema`.
    """
    fields_in = _no_fields
    if types:
        from streampack.fields.records import fields_in
    fields: list[tuple[dict[str, NDArray[Any]], dict[str, Any]]] = []
    document_fields: list[dict[str, NDArray[Any]]] = []
    problems: dict[int, str] = {}
    good: list[int] = []
    contents: list[Any] = []
    for i, item in enumerate(items):
        try:
            parts = _documents_in(*read(item))
            held = []
            for record, document in parts:
                num_tokens = len(document) if kind is Documents else None
                more = fields_in(record, num_tokens, types)
                masked = {}
                if num_tokens is not None:
                    masked = _masks_in(record, num_tokens, masks, unread)
                held.append((document, more, masked))
        except BrokenDocumentError as reason:
            problems[i] = str(reason)
            continue
        for document, more, masked in held:
            good.append(i)
            fields.append(more)
            document_fields.append(masked)
            contents.append(document)
    of_documents = _joined([values for _, values in fields], np.array)
    if kind is not Documents:
        return kind(contents, origin[good], of_documents), problems
    dtypes = {array.dtype for array in contents}
    if len(dtypes) != 1 or dtypes.isdisjoint(TOKEN_DTYPES):
        contents = [array.astype(np.uint32) for array in contents]
    of_tokens = _joined([arrays for arrays, _ in fields], np.concatenate)
    block = Documents.from_arrays(contents, origin[good], None, of_tokens, of_documents)
    for name in {name: None for arrays in document_fields for name in arrays}:
        for arrays, ids in zip(document_fields, contents, strict=True):
            if name not in arrays:  # without a mask, no token is padding and all are learnt
                arrays[name] = ids if name == LABELS else np.ones(len(ids), dtype=np.bool_)
    block, wrong = with_masks(block, _joined(document_fields, np.concatenate))
    if masks is None:
        wrong = dict.fromkeys(_unlearnt(block), _UNLEARNT) | wrong
    problems |= {good[row]: reason for row, reason in wrong.items()}
    rows = np.array(good, dtype=np.int64)
    if wrong:  # reject the record with all of its documents
        kept = np.flatnonzero(~np.isin(rows, rows[[*wrong]]))
        block, rows = block.take(kept), rows[kept]
    return _in_groups(block, rows), problems


def _unlearnt(block: Documents) -> list[int]:
    """Return the indices of documents in which no token carries loss."""
    learnt = offsets_of(block.loss_mask_or_ones.astype(np.int64))
    documents: list[int] = np.flatnonzero(np.diff(learnt[block.offsets]) == 0).tolist()
    return documents


def _documents_in(record: Any, held: Any) -> list[Read]:
    """Split a record into its documents, each with its own element of the record's lists."""
    if not isinstance(held, list):
        return [(record, held)]
    count = len(held)

    def part(value: Any, k: int) -> Any:
        listed = isinstance(value, list | tuple | np.ndarray) and len(value) == count
        return value[k] if listed else value

    return [
        ({name: part(value, k) for name, value in record.items()}, ids)
        for k, ids in enumerate(held)
    ]


def _in_groups(block: Documents, rows: NDArray[np.int64]) -> Documents:
    """Return the block as groups if a record has several documents; `rows` (N,) are records."""
    begins = np.flatnonzero(rows[1:] != rows[:-1]) + 1
    if len(begins) + 1 >= len(rows):
        return block
    return joined_groups(block, np.concatenate([[0], begins, [len(rows)]]))


def _masks_in(
    record: Any, num_tokens: int, masks: Collection[str] | None, unread: Collection[str] = ()
) -> dict[str, NDArray[Any]]:
    """Return a record's masks and labels by name, checked against `num_tokens` ids.

    An attention mask is included if it marks a token as padding. See `record_block`.
    """
    fields = record if isinstance(record, Mapping) else {}
    for name in unread:
        if fields.get(name) is not None:
            raise BrokenDocumentError(
                f'has "{name}", and the first document has not, so all its tokens would be learnt: '
                "give it to all documents, or pass loss_mask=[] to read no mask"
            )
    if masks is None:
        masks = [name for name in LOSS_FIELDS if fields.get(name) is not None]
        if not masks:
            known = ", ".join(f'"{name}"' for name in LOSS_FIELDS)
            raise BrokenDocumentError(f"needs one of {known} beside its ids")
    for name in masks:
        require_field(fields, name)
    names = [*masks]
    if ATTENTION_MASK in fields:
        attended = fields[ATTENTION_MASK]
        # Counting a list takes a tenth of the time of converting it to an array.
        whole = isinstance(attended, list) and attended.count(1) == len(attended) == num_tokens
        names += [] if whole else [ATTENTION_MASK]
    arrays = {name: numbers_of(fields[name], name, num_tokens, ()) for name in names}
    for name, values in arrays.items():
        if len(values) and values.dtype.kind == "f":
            raise BrokenDocumentError(f'has {values.dtype} values in "{name}", not integers')
    return arrays


def _no_fields(*_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {}


def _joined(
    records: list[dict[str, Any]], join: Callable[[list[Any]], NDArray[Any]]
) -> dict[str, Any]:
    """Join the values of the fields that all records have; return arrays by field name."""
    if not records:
        return {}
    names = [name for name in records[0] if all(name in record for record in records[1:])]
    return {name: join([record[name] for record in records]) for name in names}


def numbers_of(
    values: Any, name: str, num_tokens: int | None, shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return the values of a record's tokens, (num_tokens, *shape)."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError, RuntimeError):
        array = np.zeros((), dtype=object)
    if array.shape == (0,):
        array = array.reshape(0, *shape)
    if array.ndim == 1 + len(shape) and len(array) != num_tokens:
        raise BrokenDocumentError(f'has {num_tokens} ids and {len(array)} values in "{name}"')
    numbers = array.dtype.kind in "biuf" or not array.size
    if not array.ndim or array.shape[1:] != shape or not numbers:
        each = f" with {shape} for each token, but the shape {array.shape}" if shape else ""
        raise BrokenDocumentError(f'has no list of numbers in "{name}"{each}')
    return array
