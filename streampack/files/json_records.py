"""JSON records, with a limit on how deep they are nested.

Without a limit, the depth of the caller's stack would decide which records can be parsed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from streampack.arguments import type_in_words
from streampack.sources.records import BrokenDocumentError

#: Levels of nested lists and objects; Arrow allows as many in the schema of a Parquet file.
MOST_NESTED = 100


def parse_json(data: bytes) -> Any:
    """Parse the JSON value in `data`, which is UTF-8.

    Raises:
        ValueError: `data` is not JSON, or nested more than `MOST_NESTED` deep.
    """
    try:
        value = json.loads(data.decode())
    except RecursionError:
        _check_depth(data)
        raise
    # Texts may hold any number of brackets. Nearly all other records have fewer than the limit, and
    # a look at every byte takes longer than counting.
    flat = isinstance(value, dict) and not any(isinstance(v, dict | list) for v in value.values())
    if not flat and data.count(b"[") + data.count(b"{") > MOST_NESTED:
        _check_depth(data)
    return value


def _check_depth(data: bytes) -> None:
    # Without pairs of backslashes, and then without escaped quotes, every other part is a text.
    parts = data.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
    outside = np.frombuffer(b"".join(parts[::2]), dtype=np.uint8)
    opened, closed = ((outside == a) | (outside == b) for a, b in (b"[{", b"]}"))
    depth = int(np.cumsum(opened.astype(np.int64) - closed).max())
    if depth > MOST_NESTED:
        raise ValueError(f"it is nested {depth} levels deep, at most {MOST_NESTED} are allowed")


_BOM = b"\xef\xbb\xbf"


_ONE_VALUE = (
    'a file that is an array is read if its name ends in ".json"; of another JSON value, pass the '
    "records of json.load(file)"
)


def too_deep() -> BrokenDocumentError:
    """Return the error for a value in memory that is nested more than `MOST_NESTED` deep."""
    return BrokenDocumentError(f"is nested more than {MOST_NESTED} deep")


def record_of(data: bytes) -> dict[str, Any]:
    """Parse the JSON object in `data`, which is UTF-8 with or without a byte order mark."""
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


def size_of(value: Any, depth: int = 0) -> int:
    """Estimate the bytes of a value, up to the deepest nesting that is allowed."""
    if isinstance(value, str):
        return len(value)
    if depth > MOST_NESTED:
        return 0
    if isinstance(value, Mapping):
        return sum(size_of(item, depth + 1) for item in value.values())
    if isinstance(value, list | tuple):
        is_ids = len(value) > 0 and isinstance(value[0], int)
        return 4 * len(value) if is_ids else sum(size_of(item, depth + 1) for item in value)
    return 4 * len(value) if getattr(value, "ndim", 0) else 4
