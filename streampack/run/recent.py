"""Recent: states before and after each of the last batches of a loop, looked up by batch.

A loop may hold a copy of a batch on a device, the output of a ``transform=``, or a group. A
`PackedBatch` is found by its number, any other object by its identity: weak references are kept, so
that no batch lives longer than the loop needs it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from streampack.arguments import type_in_words
from streampack.batch import BatchGroup, PackedBatch
from streampack.errors import StateError

if TYPE_CHECKING:
    from streampack.packing.plan import PackingStats
    from streampack.run.state import RunState

REMEMBERED = 16  # last batches that `state_dict` accepts as before= and after=
_MOST_PARTS = 64  # limit of the parts searched in a container


@dataclass(slots=True)
class _Taken:
    """A batch that the loop received."""

    number: int
    composition: PackingStats
    before: RunState
    after: RunState
    # Weak references to the parts of a transform's output.
    parts: list[Callable[[], Any]] = field(default_factory=list)


class Recent:
    """The last batches that a loop received, with the state before and after each.

    Args:
        start: state before the first batch.
    """

    def __init__(self, start: RunState) -> None:
        self._taken: tuple[_Taken, ...] = ()  # replaced, since other threads look through it
        self._now = start.copy()

    def add(self, number: int, batch: PackedBatch, state: RunState) -> None:
        """Record that the loop receives batch `number`, and the state after it."""
        before, self._now = self._now, state.copy()
        taken = _Taken(number, batch.composition, before, self._now)
        self._taken = (*self._taken[1 - REMEMBERED :], taken)

    @property
    def oldest(self) -> int:
        """Return the batch that follows the oldest state."""
        return self._taken[0].before.next_batch if self._taken else self._now.next_batch

    def move(self, state: RunState) -> None:
        """Record a state that changed without a batch."""
        self._now = state.copy()

    def change(self, values: Mapping[str, Any]) -> None:
        """Write these values of leaves into every remembered state."""
        for taken in self._taken:
            taken.before.beside = taken.after.beside = values
        self._now.beside = values

    def transformed(self, number: int, item: Any) -> None:
        """Record that the loop receives `item` instead of batch `number`."""
        taken = next((each for each in reversed(self._taken) if each.number == number), None)
        if taken is None or item is None:
            return
        taken.parts = [ref for part in _parts(item) if (ref := _reference(part)) is not None]
        if not taken.parts:  # an item of numbers and text alone has no weak references
            taken.parts = [lambda: item]

    def after(self, item: Any, number_of: Callable[[PackedBatch], int]) -> RunState:
        """Return the state after a batch, or after the last one of several.

        Args:
            item: an object that the loop received, or a part of it.
            number_of: returns the index of a batch in the run.

        Raises:
            StateError: the object does not belong to one of the last batches.
        """
        return self._find(item, number_of, "after")[-1].after

    def before(self, item: Any, number_of: Callable[[PackedBatch], int]) -> RunState:
        """Return the state before a batch, or before the first one of several; see `after`."""
        return self._find(item, number_of, "before")[0].before

    def _find(
        self, item: Any, number_of: Callable[[PackedBatch], int], setting: str
    ) -> list[_Taken]:
        """Return the batches that an object of the loop belongs to, in order."""
        last = self._taken
        indices = set()
        for part in (item, *_parts(item)):
            same = [taken for taken in last if _is_of(part, taken, number_of)]
            if len(same) == 1:  # a constant in several batches identifies no batch
                indices.add(same[0].number)
        if not indices:
            raise StateError(
                f"{setting}= must belong to one of the last {len(last)} batches of this "
                f"loader, got {type_in_words(item)} that does not.",
                f"Pass an item of the loop, or a tensor in it, of the last {REMEMBERED} batches; "
                "let device= of PackedLoader copy it to a device.",
                setting=setting,
            )
        return [taken for taken in last if taken.number in indices]


def _is_of(part: Any, taken: _Taken, number_of: Callable[[PackedBatch], int]) -> bool:
    if isinstance(part, PackedBatch):
        return number_of(part) == taken.number and part.composition == taken.composition
    if part is None:  # the value of a weak reference to a batch that no longer exists
        return False
    return any(reference() is part for reference in taken.parts)


def _parts(item: Any) -> Iterator[Any]:
    """Yield the objects inside containers."""
    if isinstance(item, Mapping):
        item = tuple(item.values())
    if isinstance(item, (tuple, list, BatchGroup)):
        for part in islice(item, _MOST_PARTS):
            yield from _parts(part)
    else:
        yield item


def _reference(part: Any) -> Callable[[], Any] | None:
    """Return a weak reference; None for numbers, text and other objects without support for it."""
    try:
        return weakref.ref(part)
    except TypeError:
        return None
