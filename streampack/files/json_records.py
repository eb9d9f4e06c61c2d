"""JSON records, with a limit on how deep they are nested.

Without a limit, the depth of the caller's stack would decide which records can be parsed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

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
        return _parsed(data)
    except RecursionError:  # perhaps only because the caller's stack is deep
        with ThreadPoolExecutor(1) as thread, suppress(RecursionError):
            return thread.submit(_parsed, data).result()
        raise too_deep() from None


def _parsed(data: bytes) -> Any:
    value = json.loads(data.decode())
    # Nearly all records have fewer brackets than the limit, which are faster to count.
    if data.count(b"[") + data.count(b"{") > MOST_NESTED and isinstance(value, dict | list):
        check_depth(value)
    return value


def check_depth(value: dict[str, Any] | list[Any], depth: int = 1) -> None:
    """Raise `BrokenDocumentError` if lists and dicts are nested more than `MOST_NESTED` deep."""
    if depth > MOST_NESTED:
        raise too_deep()
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            check_depth(item, depth + 1)


_BOM = b"\xef\xbb\xbf"


_ONE_VALUE = (
    'a file that is an array is read if its name ends in ".json"; of another JSON value, pass the '
    "records of json.load(file)"
)


def too_deep() -> BrokenDocumentError:
    """Return the error for a value that is nested more than `MOST_NESTED` deep."""
    return BrokenDocumentError(f"is nested more than {MOST_NESTED} deep")


def record_of(data: bytes) -> dict[str, Any]:
    """Parse the JSON object in `data`, which is UTF-8 with or without a byte order mark."""
    try:
        value = parse_json(data.removeprefix(_BOM))
    except BrokenDocumentError:
        raise
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
