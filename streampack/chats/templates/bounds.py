"""Bounds of the results of filters and methods in chat templates, from their arguments' sizes.

A function of `PRODUCTS` returns the characters of a result, or an upper bound, before the result is
made, and counts the steps of algorithms that take longer than their result is long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from streampack.chats.templates.work import CHARACTERS, ITEM, ITEMS, StepLimit, TooMuchError

WIDEST = 10_000  # largest padding width, or other number that determines an amount of output
#: Attributes that take longer than linear time or make other memory than text.
UNSAFE = frozenset(("encode", "maketrans", "to_bytes", "translate"))
#: Filters that do not read the items of a value, or read them one by one.
SHALLOW = frozenset((
    "abs", "attr", "count", "d", "default", "filesizeformat", "first", "items", "last", "length",
    "map", "reject", "rejectattr", "reverse", "select", "selectattr",
))  # fmt: skip
#: Filters that need all items of a generator.
LISTING = frozenset((
    "batch", "dictsort", "groupby", "join", "list", "max", "min", "slice", "sort", "sum", "unique",
))  # fmt: skip
#: Tests that compare values, or read all of a value.
COMPARING = frozenset((
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le",
    "lessthan", "lower", "lt", "ne", "upper",
))  # fmt: skip
_LINES = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
#: A conversion of a format with %: its width and precision; a name in brackets may come before.
_CONVERSION = re.compile(r"(?:%|\))[-#0 +]*(\d+|\*)?(?:\.(\d+|\*))?")
_FLOAT = 320  # characters of the largest float

Bound = Callable[..., int]


def check_width(*numbers: Any) -> None:
    """Raise `TooMuchError` for a number that would make a short value long."""
    if any(isinstance(number, int) and abs(number) > WIDEST for number in numbers):
        raise TooMuchError


def _size(work: StepLimit, value: Any) -> int:
    return len(value) if isinstance(value, str) else work.weigh(value)


def percent(work: StepLimit, form: str, values: Any) -> int:
    """Return a bound of the characters of ``form % values``."""
    widths = [width for pair in _CONVERSION.findall(form) for width in pair if width]
    if any(len(width) > 5 for width in widths):
        raise TooMuchError
    numbers = [int(width) for width in widths if width != "*"]
    parts = values.values() if isinstance(values, Mapping) else values
    parts = list(parts) if isinstance(values, Mapping | tuple) else [values]
    check_width(*numbers, *(parts if "*" in widths else ()))
    widest = WIDEST if "*" in widths else max(numbers, default=0)
    longest = max((_size(work, part) for part in parts), default=0)
    if isinstance(values, Mapping):
        longest = max(longest, work.weigh(values))
    return len(form) + form.count("%") * (max(longest, _FLOAT) + widest)


def _format(work: StepLimit, value: Any, *args: Any, **kwargs: Any) -> int:
    return percent(work, value, kwargs or args) if isinstance(value, str) else 0


def _padded(work: StepLimit, value: Any, width: Any = 0, *_: Any, **__: Any) -> int:
    check_width(width)
    return _size(work, value) + (width if isinstance(width, int) else 0)


def _narrow(work: StepLimit, value: Any, *args: Any, **kwargs: Any) -> int:
    check_width(*args, *kwargs.values())
    return _size(work, value)


def _replace(
    work: StepLimit, value: Any, old: Any = "", new: Any = "", count: Any = None, **_: Any
) -> int:
    size = _size(work, value)
    times = size + 1
    if isinstance(value, str) and isinstance(old, str) and old:
        times = value.count(old)
    if isinstance(count, int) and count >= 0:
        times = min(times, count)
    return size + times * _size(work, new)


def _join(work: StepLimit, items: Any, separator: Any = "", *_: Any, d: Any = "", **__: Any) -> int:
    if isinstance(items, str):
        work.items(len(items))
    count = len(items) if hasattr(items, "__len__") else 0
    return _size(work, items) + count * _size(work, separator or d)


def _expandtabs(work: StepLimit, value: str, tabsize: Any = 8) -> int:
    check_width(tabsize)
    return len(value) + value.count("\t") * (tabsize if isinstance(tabsize, int) else 0)


def _lines(work: StepLimit, value: Any) -> int:
    if isinstance(value, str):
        return sum(value.count(line) for line in _LINES) + 1
    return _size(work, value)


def _indent(work: StepLimit, value: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    check_width(width)
    each = width if isinstance(width, int) else _size(work, width)
    return _size(work, value) + _lines(work, value) * each


def _splitlines(work: StepLimit, value: str, *_: Any, **__: Any) -> int:
    work.items(_lines(work, value))
    return 0


def _split(work: StepLimit, value: str, sep: Any = None, maxsplit: Any = -1) -> int:
    most = len(value) // 2 + 1
    if isinstance(sep, str) and sep:
        most = value.count(sep) + 1
    if isinstance(maxsplit, int) and maxsplit >= 0:
        most = min(most, maxsplit + 1)
    work.items(most)
    return 0


def _backwards(work: StepLimit, value: str, sub: Any = None, *args: Any, **kwargs: Any) -> int:
    if isinstance(sub, str):  # Python's search from the end is quadratic in the worst case
        work.take(len(value) * len(sub) // CHARACTERS)
    return 0


def _rsplit(work: StepLimit, value: str, sep: Any = None, maxsplit: Any = -1) -> int:
    return _backwards(work, value, sep) + _split(work, value, sep, maxsplit)


def _strip(work: StepLimit, value: Any, chars: Any = None) -> int:
    size = _size(work, value)
    if isinstance(chars, str):
        work.take(size * len(chars) // CHARACTERS)
    return size


def _index(work: StepLimit, value: Any, item: Any = None, *_: Any) -> int:
    """Count the comparisons of a list's method."""
    if isinstance(value, list | tuple):
        work.take(len(value) * (1 + _size(work, item) // CHARACTERS))
    return 0


def _listed(work: StepLimit, value: Any, *args: Any, **kwargs: Any) -> int:
    """Count the items of a list that is made of a value."""
    check_width(*args, *kwargs.values())
    if hasattr(value, "__len__"):
        work.items(len(value))
    return 0


def _compared(work: StepLimit, value: Any, *_: Any, **__: Any) -> int:
    return _listed(work, value) + _size(work, value)


def _words(work: StepLimit, value: Any, *_: Any, **__: Any) -> int:
    size = _size(work, value)
    work.items(size // 2)
    return size


def _sort(work: StepLimit, value: Any, *_: Any, **__: Any) -> int:
    items = value.items() if isinstance(value, Mapping) else value
    count = len(items) if hasattr(items, "__len__") else 0
    longest = max((_size(work, item) for item in items), default=0) if count else 0
    work.take(count * count.bit_length() * (1 + longest // CHARACTERS))
    return _listed(work, value)


def _sum(work: StepLimit, value: Any, attribute: Any = None, start: Any = 0) -> int:
    size = _size(work, value)
    if isinstance(start, list | tuple):  # every list is copied as often as there are lists
        work.take(len(value) * size // ITEMS // ITEM)
    return size


def _tojson(
    work: StepLimit, value: Any, *_: Any, indent: Any = None, separators: Any = None, **__: Any
) -> int:
    size = _size(work, value)
    check_width(indent)
    each = 0 if separators is None else _size(work, separators)
    if indent is not None:
        each += work.depth(value) * (indent if isinstance(indent, int) else _size(work, indent))
    return size + size // ITEM * each


def _wordwrap(
    work: StepLimit, value: Any, width: Any = 79, _: Any = True, wrapstring: Any = None, *__: Any,
    **___: Any,
) -> int:  # fmt: skip
    size = _size(work, value)
    work.take(size * (size // max(width, 1) + 1) // CHARACTERS if isinstance(width, int) else 0)
    return size + (size + 1) * (1 if wrapstring is None else _size(work, wrapstring))


def _urlize(work: StepLimit, value: Any, *args: Any, **kwargs: Any) -> int:
    size = _size(work, value)
    work.take(size * size // CHARACTERS)
    return 3 * size + size // 4 * sum(_size(work, arg) for arg in (*args, *kwargs.values()))


def _striptags(work: StepLimit, value: Any) -> int:
    size = _size(work, value)
    work.take(size * (value.count("<") if isinstance(value, str) else size) // CHARACTERS)
    return size


def _times(factor: int) -> Bound:
    return lambda work, value, *_, **__: factor * _size(work, value)


def _short(work: StepLimit, value: Any, *args: Any, **__: Any) -> int:
    """Refuse long texts as numbers, and long formats of a date."""
    if any(isinstance(text, str) and len(text) > WIDEST for text in (value, *args)):
        raise TooMuchError
    return 0


#: Bounds of filters.
FILTERS: dict[str, Bound] = {
    **dict.fromkeys(("batch", "list", "slice"), _listed),
    **dict.fromkeys(("max", "min", "unique"), _compared),
    **dict.fromkeys(("dictsort", "groupby", "sort"), _sort),
    **dict.fromkeys(("title", "wordcount"), _words),
    **dict.fromkeys(("float", "int"), _short),
    **dict.fromkeys(("round", "truncate"), _narrow),
    "center": _padded,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "pprint": _times(64),
    "replace": _replace,
    "striptags": _striptags,
    "sum": _sum,
    "tojson": _tojson,
    "trim": _strip,
    "urlencode": _times(12),
    "urlize": _urlize,
    "wordwrap": _wordwrap,
    "xmlattr": _times(6),
}
#: Bounds of the methods of texts, lists and dates.
METHODS: dict[str, Bound] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
    **dict.fromkeys(("lstrip", "rstrip", "strip"), _strip),
    **dict.fromkeys(("rfind", "rindex", "rpartition"), _backwards),
    **dict.fromkeys(("count", "index"), _index),
    "expandtabs": _expandtabs,
    "join": lambda work, separator, items=(): _join(work, items, separator),
    "replace": lambda work, value, *args, **kwargs: (
        _replace(work, value, *args, **kwargs) if isinstance(value, str) else 0
    ),
    "rsplit": _rsplit,
    "split": _split,
    "splitlines": _splitlines,
    "strftime": _short,
}
