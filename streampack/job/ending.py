"""How a finite run ends: on every rank after the same step, with no batch lost.

Batch number g of a run is lane ``g % lanes``'s, so a lane that has run dry leaves gaps, which the
loader fills with empty batches until every lane of every rank is dry. Numbers are served in
*spans* of one rotation (one batch from every lane): the next span is served if any rank has a
batch in it, or (``end="stop"``) if every lane has. The ranks ask each other one step
before the span begins and wait for the answer when it does, so it travels while the model computes.

All ranks ask the same questions in the same order, wherever a loop is left: what is asked follows
from the number of the step alone.

Cost: one sum over ranks per rotation; no batch is held back but for the first of each lane where
``end="stop"`` must know that all have one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from streampack.errors import StateError
from streampack.job.topology import Topology

__all__ = ["Alone", "End", "Ending", "Gap", "Numbered", "Ranks"]

End = Literal["drain", "stop"]


class Ranks(Protocol):
    """The data-parallel ranks of a job, as a sum over them."""

    def total(self, count: int) -> Callable[[], int]:
        """Start to add up `count` over the data-parallel ranks; the result waits for the sum.

        Every rank calls it, in the same order.
        """
        ...

    def highest(self, values: NDArray[np.int64]) -> Callable[[], NDArray[np.int64]]:
        """Start to find the highest of each value over the ranks; called as `total` is."""
        ...


class Alone:
    """A rank that asks no other: it ends when its own lanes are dry."""

    def total(self, count: int) -> Callable[[], int]:
        """The rank's own count."""
        return lambda: count

    def highest(self, values: NDArray[np.int64]) -> Callable[[], NDArray[np.int64]]:
        """The rank's own values."""
        return lambda: values


class Numbered(Protocol):
    """What a lane gives: batch number ``step * lanes + lane``, and whether another one follows."""

    @property
    def lane(self) -> int: ...  # noqa: D102

    @property
    def step(self) -> int: ...  # noqa: D102

    @property
    def has_next(self) -> bool: ...  # noqa: D102


Item = TypeVar("Item", bound=Numbered)


@dataclass(frozen=True, slots=True)
class Gap:
    """A batch that a dry lane cannot give: number ``step * lanes + lane``."""

    lane: int
    step: int


class Ending(Generic[Item]):
    """A rank's items by number, with gaps for dry lanes, up to the end that all ranks agree on.

    Args:
        items: this rank's, in order of their numbers.
        topology: of this rank.
        start: number of the first batch; lanes: of the run.
        given: per lane, how many batches it gave before `start`; a lane that is dry gave fewer
            than its turns were. Others gave none.
        ranks: who asks whom; None for an endless run, which asks nobody.
        end: "drain" gives everything, "stop" leaves at the first rotation in which some lane has
            no batch.

    Raises (while iterating):
        StateError: `items` are not this rank's, or not in order.
    """

    def __init__(
        self,
        items: Iterator[Item],
        *,
        topology: Topology,
        start: int,
        lanes: int,
        given: Mapping[int, int],
        ranks: Ranks | None,
        end: End = "drain",
    ) -> None:
        self._items = items
        self._topology = topology
        self._start = start
        self._lanes = lanes
        self._ranks = ranks
        self._end = end
        own = topology.lanes(start, lanes)
        if topology.shares(lanes) == 1:
            self._origin, self._span = 0, lanes
        else:  # rotations end inside steps, so these ranks ask before every step
            self._origin, self._span = start, topology.world_size
        numbers = [topology.batch(start, turn) for turn in range(len(own))]
        self._first = {number % lanes: number for number in numbers}
        self._unseen = deque(self._first)  # lanes that have given nothing yet, in order
        # The last step that a lane is known to have. Steps that were given count, so that a run
        # stopped inside its last rotation goes on to the end of it.
        self._last = {lane: given.get(lane, 0) - 1 for lane in own}
        self._dry: set[int] = set()  # lanes known to have no more than that
        self._ahead: deque[tuple[int, Item]] = deque()  # with their numbers
        self._pulled = -1  # number of the latest item
        self._answers: dict[int, Callable[[], int]] = {}
        self._asked = self._span_of(start) - 1
        self._served = self._asked

    def __iter__(self) -> Iterator[Item | Gap]:
        ranks = self._topology.world_size
        first = self._start
        self._ask(first + ranks - 1)
        while True:
            number = first + self._topology.rank
            if not self._is_served(number):
                if self._span_of(first) <= self._served:  # others are not through with theirs
                    self._ask(first + 2 * ranks - 1)
                    yield Gap(number % self._lanes, number // self._lanes)
                return
            item = self._take(number)
            self._ask(first + 2 * ranks - 1)
            yield item
            first += ranks

    def rest(self) -> Iterator[Item]:
        """What "stop" leaves; to be asked for once the iteration has ended."""
        yield from (item for _, item in self._ahead)
        self._ahead.clear()
        while (item := self._pull()) is not None:
            self._ahead.clear()
            yield item

    def end_lane(self, lane: int, steps: int) -> None:
        """Record that a lane has no more after `steps` batches, all ranks' counted.

        Of a lane whose end is known this says nothing new.
        """
        if lane not in self._dry:
            self._last[lane] = steps - 1
            self._dry.add(lane)

    # ------------------------------------------------------------------ agreeing

    def _ask(self, number: int) -> None:
        """Ask whether the spans up to that of `number` are served, unless that was done."""
        while self._ranks is not None and self._asked < self._span_of(number):
            self._asked += 1
            first = self._origin + self._asked * self._span
            if self._end == "drain":
                flag = self._any_has(first)
            else:
                flag = not self._all_have((first + self._span - 1) // self._lanes)
            self._answers[self._asked] = self._ranks.total(int(flag))

    def _is_served(self, number: int) -> bool:
        """Whether the span of `number` is served; waits for the answer."""
        if self._ranks is None:
            return True
        while self._served < self._span_of(number):
            total = self._answers.pop(self._served + 1)()
            if (total > 0) != (self._end == "drain"):
                return False
            self._served += 1
        return True

    def _span_of(self, number: int) -> int:
        return (number - self._origin) // self._span

    def _any_has(self, number: int) -> bool:
        """Whether a lane of this rank has a batch of that number or a higher one."""
        steps = {lane: -((lane - number) // self._lanes) for lane in self._last}
        return any(self._last[lane] >= step for lane, step in steps.items()) or any(
            self._has(lane, step) for lane, step in steps.items()
        )

    def _all_have(self, step: int) -> bool:
        """Whether all lanes of this rank have a batch of that step."""
        return all(self._has(lane, step) for lane in self._last)

    # ------------------------------------------------------------------ looking ahead

    def _has(self, lane: int, step: int) -> bool:
        while self._last[lane] < step and lane not in self._dry:
            self._pull()
        return self._last[lane] >= step

    def _take(self, number: int) -> Item | Gap:
        """The item of that number, or a gap if its lane has no such batch."""
        lane, step = number % self._lanes, number // self._lanes
        if self._has(lane, step) and not self._ahead:
            self._pull()  # that may be the end of the lane, where it could not know sooner
        if not self._has(lane, step):
            return Gap(lane, step)
        if self._ahead:
            found, item = self._ahead.popleft()
            if found == number:
                return item
        raise _out_of_order(f"Batch {number} is missing")

    def _pull(self) -> Item | None:
        """Take the next item in; None if there is none, and then all lanes are dry."""
        item = next(self._items, None)
        if item is None:
            self._dry.update(self._last)
            self._unseen.clear()
            return None
        lane, step, has_next = item.lane, item.step, item.has_next
        number = step * self._lanes + lane
        mine = self._topology.takes(number, self._start)
        if not mine or lane in self._dry or number < self._first[lane]:
            raise _out_of_order(f"Batch {number} came")
        if number <= self._pulled:
            raise _out_of_order(f"Batch {number} came after batch {self._pulled}")
        self._pulled = number
        while self._unseen and self._first[self._unseen[0]] <= number:
            unseen = self._unseen.popleft()
            if unseen != lane:
                self._dry.add(unseen)  # its turn is over
        self._last[lane] = step + has_next
        if not has_next:
            self._dry.add(lane)
        self._ahead.append((number, item))
        return item


def _out_of_order(fact: str) -> StateError:
    return StateError(
        f"{fact}, which is not what this rank's lanes give next.",
        "Batches would be lost or repeated, and the ranks would not know when the others end.",
        "Start from a state as it was saved; pass `PackedLoader.over` a loader that gives the "
        "batches of this rank's dataset as they come, not shuffled and not sharded again.",
    )
