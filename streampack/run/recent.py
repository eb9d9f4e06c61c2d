"""Recent: the states before and after each of the last batches of a loop, found by the batch.

A loop may hold a copy of a batch on a device, the output of a ``transform=``, or a group. A
`PackedBatch` is found by its number, any other object by its identity: weak references are kept, so
that no batch lives longer than the loop needs it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from streampack.arguments import type_in_words
from streampack.batch import BatchGroup, PackedBatch
from streampack.errors import StateError

if TYPE_CHECKING:
    from streampack.packing.plan import Composition
    from streampack.run.state import RunState
    from streampack.sources.credits import WeightChange

REMEMBERED = 16  # batches that a loop may be ahead of the one with the state it asks for
_MOST_PARTS = 64  # of one container


@dataclass(slots=True)
class _Taken:
    """A batch that the loop got."""

    number: int
    composition: Composition
    before: RunState
    after: RunState
    parts: list[Callable[[], Any]] = field(default_factory=list)  # of what a transform made of it


class Recent:
    """The last batches that a loop got, with the state before and after each.

    Args:
        start: the state before the first batch.
    """

    def __init__(self, start: RunState) -> None:
        self._taken: deque[_Taken] = deque(maxlen=REMEMBERED)
        self._now = start.copy()

    def add(self, number: int, batch: PackedBatch, state: RunState) -> None:
        """Record that the loop gets batch `number`, and the state after it."""
        before, self._now = self._now, state.copy()
        self._taken.append(_Taken(number, batch.composition, before, self._now))

    def move(self, state: RunState) -> None:
        """Record a state that changed without a batch."""
        self._now = state.copy()

    def set_weights(self, changes: tuple[WeightChange, ...]) -> None:
        """Let every state carry these changes of a mixture's weights."""
        for taken in self._taken:
            taken.before.weight_changes = taken.after.weight_changes = changes
        self._now.weight_changes = changes

    def transformed(self, number: int, item: Any) -> None:
        """Record that the loop gets `item` in the place of batch `number`."""
        taken = next((each for each in reversed(self._taken) if each.number == number), None)
        if taken is None or item is None:
            return
        taken.parts = [ref for part in _parts(item) if (ref := _reference(part)) is not None]
        if not taken.parts:  # of numbers and text alone, which have no weak references
            taken.parts = [lambda: item]

    def after(self, given: Any, number_of: Callable[[PackedBatch], int]) -> RunState:
        """The state after a batch, or after the last one of several.

        Args:
            given: whatever the loop got, or a part of it.
            number_of: gives the number of a batch of the run.

        Raises:
            StateError: it is not of the last batches.
        """
        return self._find(given, number_of, "after")[-1].after

    def before(self, given: Any, number_of: Callable[[PackedBatch], int]) -> RunState:
        """The state before a batch, or before the first one of several; see `after`."""
        return self._find(given, number_of, "before")[0].before

    def _find(
        self, given: Any, number_of: Callable[[PackedBatch], int], setting: str
    ) -> list[_Taken]:
        """The batches that a loop's object is of, in order."""
        found = set()
        for part in (given, *_parts(given)):
            same = [taken for taken in self._taken if _is_of(part, taken, number_of)]
            if len(same) == 1:  # a part of several batches, as a constant, names none of them
                found.add(same[0].number)
        if not found:
            raise StateError(
                f"{setting}= is {type_in_words(given)} that is not of one of the last "
                f"{len(self._taken)} batches of this loader.",
                f"Pass what the loop got, or a tensor of it, of the last {REMEMBERED} batches; let "
                "device= of PackedLoader copy it to a device.",
                setting=setting,
            )
        return [taken for taken in self._taken if taken.number in found]


def _is_of(part: Any, taken: _Taken, number_of: Callable[[PackedBatch], int]) -> bool:
    if isinstance(part, PackedBatch):
        return number_of(part) == taken.number and part.composition == taken.composition
    if part is None:  # as is what a reference to a batch that is gone gives
        return False
    return any(reference() is part for reference in taken.parts)


def _parts(item: Any) -> Iterator[Any]:
    """The objects inside containers."""
    if isinstance(item, Mapping):
        item = tuple(item.values())
    if isinstance(item, (tuple, list, BatchGroup)):
        for part in islice(item, _MOST_PARTS):
            yield from _parts(part)
    else:
        yield item


def _reference(part: Any) -> Callable[[], Any] | None:
    """A weak reference; None for numbers, text and other objects that can have none."""
    try:
        return weakref.ref(part)
    except TypeError:
        return None
