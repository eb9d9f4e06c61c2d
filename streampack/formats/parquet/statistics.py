"""Row groups that a condition leaves out, by the statistics in a file's footer.

Only smallest and largest values that every writer orders alike are used: of booleans, signed
integers, floating-point numbers, dates and UTF-8 texts, and not the deprecated ones. Threads that
fetch ahead call this, so it uses no pyarrow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from streampack.documents.fields import FieldSpec
from streampack.fields.paths import PathFields
from streampack.formats.parquet.chunks import compact_fields, footer_bytes
from streampack.keep_last import KeepLast
from streampack.predicates.bounds import Bounds

if TYPE_CHECKING:
    from collections.abc import Hashable

    from streampack.predicates import Predicate
    from streampack.storage.files import StoredFile

_NULLS, _MAX, _MIN = 3, 5, 6
_COLUMN = {3: {3: True, 12: {_NULLS: True, _MAX: True, _MIN: True}}}
_LOGICAL = {
    1: {},
    6: {},
    10: {2: True},
}
_ELEMENT = {1: True, 4: True, 5: True, 6: True, 9: True, 10: _LOGICAL}
_FILE = {2: _ELEMENT, 4: {1: _COLUMN, 3: True}}

_BOOLEAN, _INT32, _INT64, _FLOAT, _DOUBLE, _BYTES = 0, 1, 2, 4, 5, 6
_NUMBERS = {_BOOLEAN: "<?", _INT32: "<i", _INT64: "<q", _FLOAT: "<f", _DOUBLE: "<d"}
_UTF8, _DATE, _SIGNED = 0, 6, (15, 16, 17, 18)  # converted types
_STRING, _OF_DATE, _INTEGER = 1, 6, 10  # logical types
_EPOCH = date(1970, 1, 1)

#: Groups left out, and all groups.
Pruned = tuple[frozenset[int], int]
_pruned: KeepLast[Hashable, Pruned] = KeepLast(64)


def pruned_groups(
    file: StoredFile, predicate: Predicate, ids: Mapping[str, int] | None = None
) -> Pruned:
    """Return the row groups without a row that satisfies a condition; cache the latest files.

    Args:
        file: an open file.
        predicate: the condition.
        ids: field ids of its columns, if files know them by these; None takes names.
    """
    key = (file.version, predicate.text, None if ids is None else tuple(sorted(ids.items())))
    return _pruned.keep(key, lambda: _read(file, predicate, ids))


def _read(file: StoredFile, predicate: Predicate, ids: Mapping[str, int] | None) -> Pruned:
    footer = footer_bytes(file) if predicate.is_bounded else None
    if footer is None:
        return frozenset(), 0
    try:
        fields = compact_fields(footer, _FILE)
        columns = _columns(fields[2], ids)
        groups: Sequence[dict[int, Any]] = fields.get(4, ())
        beside = {} if ids is not None else _beside(str(file.version[0]), fields[2], predicate)
        left_out = {
            number
            for number, group in enumerate(groups)
            if not predicate.may_match(
                partial(_bounds, columns, beside, _statistics(group), group[3])
            )
        }
        return frozenset(left_out), len(groups)
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        struct.error,
    ):
        return frozenset(), 0  # reading the file tells what is wrong with it


def _beside(
    path: str, elements: Sequence[dict[int, Any]], predicate: Predicate
) -> dict[str, Bounds]:
    """Return the bounds of columns that a file's path has, as in `lang=en`, and the file lacks."""
    if "=" not in path:
        return {}
    names, at = set(), 1
    while at < len(elements):
        names.add(elements[at][4].decode())
        at += _width(elements, at)
    values = PathFields.of(path, FieldSpec(), names, predicate).values
    return {
        name: Bounds(only_null=True) if value is None else Bounds(value, value)
        for name, value in values.items()
    }


def _columns(
    elements: Sequence[dict[int, Any]], ids: Mapping[str, int] | None
) -> dict[str, tuple[bytes, Callable[[bytes], Any]]]:
    """Return name in the file and decoder of the top-level columns of usable types."""
    columns = {}
    at = 1
    names = None if ids is None else {number: name for name, number in ids.items()}
    while at < len(elements):
        element = elements[at]
        width = _width(elements, at)
        decode = _decoder(element) if width == 1 else None
        name = element[4].decode() if names is None else names.get(element.get(9, -1), "")
        if decode is not None and name:
            columns[name] = (element[4], decode)
        at += width
    return columns


def _width(elements: Sequence[dict[int, Any]], at: int) -> int:
    """Return the number of elements of the column that begins at an index."""
    width, waiting = 0, 1
    while waiting:
        waiting += elements[at + width].get(5, 0) - 1
        width += 1
    return width


def _decoder(element: dict[int, Any]) -> Callable[[bytes], Any] | None:
    kind, converted, logical = element.get(1), element.get(6), element.get(10)
    if kind == _BYTES:
        return bytes if converted == _UTF8 or (logical is not None and _STRING in logical) else None
    if kind in (_INT32, _INT64):
        if kind == _INT32 and (converted == _DATE or (logical is not None and _OF_DATE in logical)):
            return lambda data: _EPOCH + timedelta(days=struct.unpack("<i", data)[0])
        if logical is not None:
            if not logical.get(_INTEGER, {}).get(2):
                return None
        elif converted is not None and converted not in _SIGNED:
            return None
    elif converted is not None or logical is not None:
        return None
    form = _NUMBERS.get(kind, "")  # type: ignore[arg-type]
    return (lambda data: struct.unpack(form, data)[0]) if form else None


def _statistics(group: dict[int, Any]) -> dict[bytes, dict[int, Any]]:
    return {
        meta[3][0]: meta[12]
        for meta in (chunk[3] for chunk in group.get(1, ()))
        if len(meta[3]) == 1 and 12 in meta
    }


def _bounds(
    columns: Mapping[str, tuple[bytes, Callable[[bytes], Any]]],
    beside: Mapping[str, Bounds],
    statistics: Mapping[bytes, dict[int, Any]],
    rows: int,
    name: str,
) -> Bounds | None:
    if name in beside:
        return beside[name]
    column, decode = columns.get(name, (b"", bytes))
    known = statistics.get(column)
    if known is None:
        return None
    if known.get(_NULLS, -1) == rows > 0:
        return Bounds(only_null=True)
    if _MIN not in known or _MAX not in known:
        return None
    return Bounds(decode(known[_MIN]), decode(known[_MAX]))
