"""What a record holds, a JSON object or the row of a table: text, or token ids and a loss mask.

A record that is no document raises `BrokenDocumentError`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words
from streampack.reading.nesting import parse_json

_BOM = b"\xef\xbb\xbf"


_ONE_VALUE = (
    "of a file that is one JSON value pass json.load(file), or write its records one to a line"
)


class BrokenDocumentError(ValueError):
    """Something that is no document.

    The message ends a sentence that begins with its name: "Row 7 of a.parquet is null".
    """


class DamagedFileError(Exception):
    """A file contradicts itself; the message is a clause that says how.

    `remedy` is a clause as well; "" is to write or download it again.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.remedy = remedy


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
