"""Reading the cursors of saved states, which may be damaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampack.errors import StateError


def cursor_field(
    cursor: Mapping[str, Any], name: str, *kinds: type, may_be_negative: bool = False
) -> Any:
    """The value of a field; raises `StateError` unless it is there and of one of these types.

    Whole numbers are counts, unless they may be negative.
    """
    value = cursor.get(name, _ABSENT)
    sound = isinstance(value, kinds)
    if isinstance(value, bool):
        sound = bool in kinds
    elif isinstance(value, int) and not may_be_negative:
        sound = sound and is_count(value)
    if not sound:
        raise damaged_cursor(cursor)
    return value


def damaged_cursor(cursor: Any) -> StateError:
    """The error for a cursor that cannot be read."""
    return StateError(
        f"The saved place {cursor!r:.200} cannot be read.",
        "It is unknown where to continue.",
        "Pass what `state_dict()` returned, unchanged.",
    )


def is_count(value: Any, least: int = 0) -> bool:
    """True for a whole number, not below `least`, that JSON holds exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 53


_ABSENT = object()
