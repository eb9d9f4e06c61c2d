"""What a record holds, JSON, a row or an object in memory: text, or ids and a mask; in blocks.

A record that is no document raises `BrokenDocumentError`.

JSON with a limit on how deep it is nested, so that it is read the same wherever it is read.

Without one it depends on how deep the caller's stack is whether a record can be parsed.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words
from streampack.documents.blocks import (
    TOKEN_DTYPES,
    Documents,
    Fields,
    Texts,
    joined_groups,
    offsets_of,
)
from streampack.documents.conversations import Conversations
from streampack.documents.fields import TEXT_REMEDY, FieldTypes, cast_values, misfit
from streampack.sources.fields import ATTENTION_MASK, LABELS, LOSS_FIELDS, with_masks

#: Lists and objects in one another. Arrow allows as many in the schema of a Parquet file.
MOST_NESTED = 100


def parse_json(data: bytes) -> Any:
    """The value in `data`, UTF-8.

    Raises:
        ValueError: it is not JSON, or nested more than `MOST_NESTED` deep.
    """
    # Nearly all records have fewer brackets, and a look at every byte takes longer than counting.
    if data.count(b"[") + data.count(b"{") > MOST_NESTED:
        # Without pairs of backslashes, and then without escaped quotes, every other part is a text.
        parts = data.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        outside = np.frombuffer(b"".join(parts[::2]), dtype=np.uint8)
        opened, closed = ((outside == a) | (outside == b) for a, b in (b"[{", b"]}"))
        depth = int(np.cumsum(opened.astype(np.int64) - closed).max())
        if depth > MOST_NESTED:
            raise ValueError(f"it is nested {depth} deep, {MOST_NESTED} are allowed")
    return json.loads(data.decode())


_BOM = b"\xef\xbb\xbf"


_ONE_VALUE = (
    "of a file that is one JSON value pass json.load(file), or write its records one to a line"
)


class BrokenDocumentError(ValueError):
    """Something that is no document.

    The message ends a sentence that begins with its name: "Row 7 of a.parquet is null".
    """


class DamagedFileError(Exception):
    """A file contradicts itself; the message is a clause that says how."""


def too_long(num_bytes: int, limit_bytes: int) -> str:
    """What is wrong with a document above the limit of `Reading`."""
    return f"has {num_bytes} bytes and is longer than max_document_bytes={limit_bytes} of Reading"


def record_of(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`, UTF-8 with or without a byte order mark."""
    try:
        value = parse_json(data.removeprefix(_BOM))
    except ValueError as error:
        hint = f"; {_ONE_VALUE}" if data.strip() in (b"[", b"{") else ""
        raise BrokenDocumentError(f"is not JSON in UTF-8 ({error}){hint}") from None
    if not isinstance(value, dict):
        hint = f"; {_ONE_VALUE}" if isinstance(value, list) else ""
        raise BrokenDocumentError(
            f"holds {type_in_words(value)} where an object was expected{hint}"
        )
    return value


def require_field(record: Mapping[str, Any], name: str) -> None:
    """Raise `BrokenDocumentError` unless the record has this field."""
    if name not in record:
        names = ", ".join(f'"{name}"' for name in list(record)[:10]) or "none"
        raise BrokenDocumentError(f'has no field "{name}" (it has {names})')


def kind_of(value: Any) -> str:
    """What a value of a record may be: "tokens", "mask" (a list of booleans), "text" or "".

    A list of lists of ids is "several": documents that are a group.
    """
    if isinstance(value, list) and value:
        if isinstance(value[0], list):
            return "several" if kind_of(value[0]) == "tokens" else ""
        return {int: "tokens", bool: "mask"}.get(type(value[0]), "")
    return "text" if isinstance(value, str) else ""


def text_of(record: Mapping[str, Any], name: str, data: bytes) -> str:
    """The text in a field; `data` is the JSON of the record."""
    text = record[name]
    if not isinstance(text, str):
        raise BrokenDocumentError(f'has {type_in_words(text)} in "{name}" where text was expected')
    if b"\\u" in data:  # an escape can name half a character, which no tokenizer takes
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BrokenDocumentError(f'has half a character in "{name}"') from None
    return text


def documents_of(
    record: Mapping[str, Any], name: str, data: bytes | None
) -> NDArray[np.uint32] | list[NDArray[np.uint32]]:
    """The token ids in a field of a JSON object; of a list of lists, those of each document."""
    ids = record[name]
    if isinstance(ids, list) and ids and isinstance(ids[0], list):
        return [ids_of({name: one}, name, data) for one in ids]
    return ids_of(record, name, data)


def ids_of(record: Mapping[str, Any], name: str, data: bytes | None = None) -> NDArray[np.uint32]:
    """(T,) the token ids in a field; `data` is the JSON of the record, if it was JSON."""
    ids = record[name]
    if not isinstance(ids, list):
        raise BrokenDocumentError(
            f'has {type_in_words(ids)} in "{name}" where a list of ids was expected'
        )
    # A look at every id takes as long as parsing it, and most records have no such words.
    may_be_bools = data is None or b"true" in data or b"false" in data
    if may_be_bools and bool in map(type, ids):
        raise BrokenDocumentError(f'has true or false in "{name}" where ids were expected')
    try:
        # `array` accepts nothing but whole numbers in its range; numpy would round.
        return np.frombuffer(array("I", ids), dtype=np.uint32)
    except (TypeError, OverflowError) as error:
        raise BrokenDocumentError(f'has a wrong id in "{name}" ({error})') from None


Item = TypeVar("Item")

_UNLEARNT = "has no token that carries loss"

#: A record, and what it holds: ids, a list of the ids of several documents, a text, a conversation.
Read = tuple[Any, Any]


def record_block(
    items: Iterable[Item],
    read: Callable[[Item], Read],
    kind: type[Any],
    origin: NDArray[np.void],
    types: FieldTypes,
    masks: Collection[str] | None = (),
    unread: Collection[str] = (),
) -> tuple[Documents | Texts | Conversations, dict[int, str]]:
    """A block of the good ones of N items, and what is wrong with the others, by number.

    Args:
        items: N of them.
        read: what an item holds; raises `BrokenDocumentError` where that is no document.
        kind: `Documents`, `Texts` or `Conversations`. Ids of several dtypes, or of one that is
            no token dtype, become uint32.
        origin: (N,) of dtype `ORIGIN`.
        types: the fields that are read besides.
        masks: the fields with loss masks or labels of ids. None is whichever of `LOSS_FIELDS` a
            record has; one has to be there, and a token that carries loss.
        unread: fields that a record of ids may not have; see `Fields`.
    """
    fields: list[tuple[dict[str, NDArray[Any]], dict[str, Any]]] = []
    beside: list[dict[str, NDArray[Any]]] = []
    problems: dict[int, str] = {}
    good: list[int] = []
    found: list[Any] = []
    for i, item in enumerate(items):
        try:
            parts = _documents_in(*read(item))
            held = []
            for record, document in parts:
                num_tokens = len(document) if kind is Documents else None
                more = _fields_in(record, num_tokens, types)
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
            beside.append(masked)
            found.append(document)
    of_documents = _joined([values for _, values in fields], np.array)
    if kind is not Documents:
        return kind(found, origin[good], of_documents), problems
    dtypes = {array.dtype for array in found}
    if len(dtypes) != 1 or dtypes.isdisjoint(TOKEN_DTYPES):
        found = [array.astype(np.uint32) for array in found]
    of_tokens = _joined([arrays for arrays, _ in fields], np.concatenate)
    block = Documents.from_arrays(found, origin[good], None, of_tokens, of_documents)
    for name in {name: None for arrays in beside for name in arrays}:
        for arrays, ids in zip(beside, found, strict=True):
            if name not in arrays:  # nothing is padding, and all is learnt
                arrays[name] = ids if name == LABELS else np.ones(len(ids), dtype=np.bool_)
    block, wrong = with_masks(block, _joined(beside, np.concatenate))
    if masks is None:
        wrong = dict.fromkeys(_unlearnt(block), _UNLEARNT) | wrong
    problems |= {good[row]: reason for row, reason in wrong.items()}
    rows = np.array(good, dtype=np.int64)
    if wrong:  # a record with all its documents
        kept = np.flatnonzero(~np.isin(rows, rows[[*wrong]]))
        block, rows = block.take(kept), rows[kept]
    return _in_groups(block, rows), problems


def _unlearnt(block: Documents) -> list[int]:
    """Numbers of the documents of which no token carries loss."""
    learnt = offsets_of(block.loss_mask_or_ones.astype(np.int64))
    found: list[int] = np.flatnonzero(np.diff(learnt[block.offsets]) == 0).tolist()
    return found


def _documents_in(record: Any, held: Any) -> list[Read]:
    """The documents of a record, each with its own part of what the record has a list of."""
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
    """The block of documents of these records (N,), as groups if a record has several."""
    begins = np.flatnonzero(rows[1:] != rows[:-1]) + 1
    if len(begins) + 1 >= len(rows):
        return block
    return joined_groups(block, np.concatenate([[0], begins, [len(rows)]]))


def _masks_in(
    record: Any, num_tokens: int, masks: Collection[str] | None, unread: Collection[str] = ()
) -> dict[str, NDArray[Any]]:
    """By name, the masks and labels in a record of so many token ids; see `record_block`.

    An attention mask is among them if there is one that says that a token is padding.
    """
    given = record if isinstance(record, Mapping) else {}
    for name in unread:
        if given.get(name) is not None:
            raise BrokenDocumentError(
                f'has "{name}", and the first document has not, so its tokens would be learnt '
                "whatever that says: give it to all of them, or pass loss_mask=[], which reads none"
            )
    if masks is None:
        masks = [name for name in LOSS_FIELDS if given.get(name) is not None]
        if not masks:
            known = ", ".join(f'"{name}"' for name in LOSS_FIELDS)
            raise BrokenDocumentError(f"has none of {known} beside its ids")
    for name in masks:
        require_field(given, name)
    names = [*masks]
    if ATTENTION_MASK in given:
        attended = given[ATTENTION_MASK]
        # An array is made in ten times that time.
        whole = isinstance(attended, list) and attended.count(1) == len(attended) == num_tokens
        names += [] if whole else [ATTENTION_MASK]
    found = {name: _numbers(given[name], name, num_tokens) for name in names}
    for name, values in found.items():
        if len(values) and values.dtype.kind == "f":
            raise BrokenDocumentError(f'has {values.dtype} values in "{name}", no whole numbers')
    return found


def _fields_in(
    record: Any, num_tokens: int | None, types: FieldTypes
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """By name, the fields of tokens and of the document in a record of so many token ids.

    Those of tokens are read from records of token ids alone: None is a record of text.
    """
    if not types:
        return {}, {}
    given = record if isinstance(record, Mapping) else {}
    token = {} if num_tokens is None else types.token
    for name in (*token, *types.document):
        if not types.optional:
            require_field(given, name)
    arrays = {name: _numbers(given[name], name, num_tokens) for name in token if name in given}
    values = {name: _number(given[name], name) for name in types.document if name in given}
    if not types.optional:  # or a map may have them in another dtype
        arrays = {name: _whole(array, name, token[name]) for name, array in arrays.items()}
        values = {
            name: _whole(np.array([value]), name, types.document[name])[0]
            for name, value in values.items()
        }
    return arrays, values


def _joined(records: list[dict[str, Any]], join: Callable[[list[Any]], NDArray[Any]]) -> Fields:
    """By name, the values of all records together, of the fields that every one has."""
    if not records:
        return {}
    names = [name for name in records[0] if all(name in record for record in records[1:])]
    return {name: join([record[name] for record in records]) for name in names}


def _numbers(values: Any, name: str, num_tokens: int | None) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError, RuntimeError):
        array = np.zeros((), dtype=object)
    if array.ndim == 1 and len(array) != num_tokens:
        raise BrokenDocumentError(f'has {num_tokens} ids and {len(array)} values in "{name}"')
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "biuf"):
        raise BrokenDocumentError(f'has no list of numbers in "{name}"')
    return array


def _number(value: Any, name: str) -> Any:
    if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, str):
        raise BrokenDocumentError(f'has a text in "{name}", not a number. {TEXT_REMEDY[:-1]}')
    if not isinstance(value, Real):
        raise BrokenDocumentError(f'has {type_in_words(value)} in "{name}", not a number')
    value = value if isinstance(value, int | float) else float(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise BrokenDocumentError(f'has a number of more than 64 bits in "{name}"')
    return value


def _whole(values: NDArray[Any], name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """(T,) values of a record, in the dtype of the field if it is one of integers.

    Joined with those of another record, large integers could become floats that lie beside them.
    """
    if dtype.kind not in "iu":
        return values
    made, wrong = cast_values(values, dtype)
    if len(wrong):
        raise BrokenDocumentError(misfit(values[wrong[0]], name, dtype))
    return made
