"""Work: the steps of a chat template, and the sizes of its values, counted before values are made.

Steps do not depend on the machine, so a record that is refused is refused everywhere. A value that
is a list of itself twice, many times over, has few objects and endless text. `StepLimit.weigh`
adds up the text by visiting each object once, so the cost of printing, comparing or sorting a value
is known before.
"""

from __future__ import annotations

import threading
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from types import GeneratorType
from typing import Any

from jinja2.utils import Namespace

STEPS = 4_000_000  # per conversation; they take a few seconds at most
STEPS_BETWEEN = 100  # per pair of messages, because every message is compared with the others
CHARACTERS = 256  # characters written or copied per step
ITEMS = 4  # items examined per step
LARGEST = 1 << 25  # maximum characters of a value with everything nested in it
ITEM = 8  # characters that an item counts, besides its own
MOST_ITEMS = LARGEST // ITEM
BITS = 1 << 14  # maximum bits of an integer
_NUMBER = 24  # characters of a float or an object, roughly

_SIZED = (list, tuple, dict, set, frozenset, range)
_NESTED = (list, tuple, set, frozenset, KeysView, ValuesView)


class TooMuchError(Exception):
    """A template exceeds a limit."""

    def __str__(self) -> str:
        return f"takes millions of steps or makes more than {LARGEST:,} characters"


class StepLimit(threading.local):
    """Remaining steps of a template in this thread."""

    left = STEPS

    def begin(self, messages: int, characters: int) -> None:
        """Reset the limit for a conversation with this number of messages and characters."""
        per_message = STEPS_BETWEEN * messages + characters // CHARACTERS * 16
        self.left = STEPS + messages * per_message

    def take(self, steps: int) -> None:
        """Spend steps; raise `TooMuchError` if none are left."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchError

    def made(self, size: int) -> None:
        """Spend the steps for a text of `size` characters, which is made or compared."""
        if size > LARGEST:
            raise TooMuchError
        self.take(2 + size // CHARACTERS)

    def items(self, count: int) -> None:
        """Spend the steps for a list of `count` items."""
        if count > MOST_ITEMS:
            raise TooMuchError
        self.take(2 + count // ITEMS)

    def value(self, value: Any) -> Any:
        """Count a value's own size and return it; a generator counts its items as they are read."""
        if isinstance(value, str):
            self.made(len(value))
        elif isinstance(value, _SIZED):
            self.items(len(value))
        elif isinstance(value, int):
            if value.bit_length() > BITS:
                raise TooMuchError
        elif isinstance(value, GeneratorType):
            return self.counted(value)
        return value

    def written(self, value: Any) -> int:
        """Count a value that is written or compared; return its characters, nested ones too."""
        size = len(value) if isinstance(value, str) else self.weigh(value)
        self.made(size)
        return size

    def weigh(self, value: Any) -> int:
        """Return the characters of a value with everything nested in it.

        Raises:
            TooMuchError: they are more than `LARGEST`.
        """
        return self._weigh(value, {})

    def _weigh(self, value: Any, known: dict[int, int]) -> int:
        if isinstance(value, str):
            return len(value)
        if isinstance(value, int):
            return _NUMBER + value.bit_length() // 3
        parts: Iterable[Any]
        if isinstance(value, dict | ItemsView):
            pairs = value.items() if isinstance(value, dict) else value
            parts = (part for pair in pairs for part in pair)
        elif isinstance(value, _NESTED):
            parts = value
        elif isinstance(value, Namespace):
            return self._weigh(value._Namespace__attrs, known)  # type: ignore[attr-defined]
        else:
            return _NUMBER
        if (weight := known.get(id(value))) is not None:
            return weight
        known[id(value)] = 0  # a value within itself ends in a RecursionError, or as "[...]"
        self.items(len(value))
        weight = ITEM * (1 + len(value))
        for part in parts:
            weight += len(part) if isinstance(part, str) else self._weigh(part, known)
        if weight > LARGEST:
            raise TooMuchError
        known[id(value)] = weight
        return weight

    def depth(self, value: Any) -> int:
        """Return how deep lists and objects are nested in a value."""
        known: dict[int, int] = {}

        def depth(value: Any) -> int:
            if not isinstance(value, dict | list | tuple):
                return 0
            if id(value) not in known:
                parts = value.values() if isinstance(value, dict) else value
                known[id(value)] = 1 + max(map(depth, parts), default=0)
            return known[id(value)]

        return depth(value)

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of a loop, one step each."""
        for item in items:
            self.take(1)
            yield item

    def listed(self, items: Any) -> Any:
        """Return the items of a generator as a list; any other value as it is."""
        return list(self.counted(items)) if isinstance(items, GeneratorType) else items
