"""How a finite run ends: on every rank after the same step, with no batch lost.

Batch number g of a run is lane ``g % lanes``'s, so a lane that has run dry leaves gaps, which the
loader fills with empty batches where another rank has a batch in the same step. A step in which no
rank has one is left out. The run goes on while any rank has a batch, or (``end="stop"``) while
every lane has. The ranks ask each other one step ahead and wait for the answer when the step
begins, so it travels while the model computes.

All ranks ask the same questions in the same order, wherever a loop is left: what is asked follows
from the number of the step alone.

Cost: one sum over ranks per step; no batch is held back but for the first of each lane where
``end="stop"`` must know that all have one.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from streampack.errors import RankError
from streampack.job.topology import Topology

End = Literal["drain", "stop"]

GIVES = 1 << 32  # above all flags in a sum over ranks: how many have a batch


class Ranks(Protocol):
    """The data-parallel ranks of a job, as a sum over them."""

    def total(self, count: int, same: int = 0) -> Callable[[], int]:
        """Start to add up `count` over the data-parallel ranks; the result waits for the sum.

        Every rank calls it, in the same order, with the same `same`, of 24 bits. The result raises
        `RankError` on all of them otherwise.
        """
        ...

    def highest(self, values: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
        """Start to find the highest of each value over the ranks; called as `total` is."""
        ...


def question(*what: object) -> int:
    """What all ranks ask in this place: 24 bits, which differ from those of other questions."""
    return zlib.crc32(repr(what).encode()) >> 8


class OtherPlaceError(RankError):
    """Ranks ask different questions at once."""

    def __init__(self) -> None:
        super().__init__(
            "The ranks are not at the same place of the same run.",
            "Pass the same arguments and load states of the same step on every rank; call "
            "set_weights and skip on all of them, after the same step and with the same numbers.",
        )

    def __reduce__(self) -> Any:
        return type(self), ()


class Alone:
    """A rank that asks no others: it ends when its own lanes do."""

    def total(self, count: int, same: int = 0) -> Callable[[], int]:
        """The rank's own count."""
        return lambda: count

    def highest(self, values: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
        """The rank's own values."""
        return lambda: values


@dataclass(frozen=True, slots=True)
class Gap:
    """A batch that a dry lane cannot give: number ``step * lanes + lane``."""

    lane: int
    step: int


class Ending:
    """A rank's items by number, with gaps for dry lanes, up to the end that all ranks agree on.

    Args:
        items: this rank's, in order of their numbers, ``step * lanes + lane``; each has `lane`,
            `step` and `has_next`, whether its lane has another one.
        topology: of this rank.
        start: number of the first batch; lanes: of the run.
        known: per lane, how many batches it is known to have, those given before `start` among
            them; a lane that is dry has fewer than its turns were. Of others nothing is known.
        ranks: who asks whom; None for an endless run, which asks nobody.
        end: "drain" gives everything, "stop" leaves at the first rotation in which some lane has
            no batch.
        leaves_out: whether steps of nothing but gaps are left out.
    """

    def __init__(
        self,
        items: Iterator[Any],
        *,
        topology: Topology,
        start: int,
        lanes: int,
        known: Mapping[int, int],
        ranks: Ranks | None,
        end: End = "drain",
        leaves_out: bool = False,
    ) -> None:
        self._items = items
        self._topology = topology
        self._start = start
        self._lanes = lanes
        self._ranks = ranks
        self._end = end
        self._leaves_out = leaves_out
        own = topology.lanes(start, lanes)
        numbers = [topology.batch(start, turn) for turn in range(len(own))]
        self._first = {number % lanes: number for number in numbers}
        self._unseen = deque(self._first)  # lanes that have given nothing yet, in order
        # The last step that a lane is known to have. Steps that were given count, so that a run
        # stopped inside its last rotation goes on to the end of it.
        self._last = {lane: known.get(lane, 0) - 1 for lane in own}
        self._dry: set[int] = set()  # lanes known to have no more than that
        self._ahead: deque[tuple[int, Any]] = deque()  # with their numbers
        self._answers: deque[Callable[[], int]] = deque()  # to what was asked of coming steps

    def __iter__(self) -> Iterator[Any]:
        ranks = self._topology.world_size
        first = self._topology.step_at(self._start)
        self._ask(first)
        while (batches := self._next_batches()) is not None:
            item = self._take(first + self._topology.rank)
            first += ranks
            self._ask(first)
            nobody_has = not batches or (ranks == 1 and isinstance(item, Gap))
            if not (nobody_has and self._leaves_out):
                yield item

    def rest(self) -> Iterator[Any]:
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

    def _ask(self, first: int) -> None:
        """Ask about the step that begins with batch `first`: whether it is given, and by whom."""
        if self._ranks is None:
            return
        number = first + self._topology.rank
        lane, step = self._lane_step(number)
        given = number < self._start
        sure = not given and self._last[lane] >= step  # as in nearly every step
        if self._end == "drain":
            flag = sure or self._any_has(max(first, self._start))
        else:
            flag = not self._all_have((first + self._topology.world_size - 1) // self._lanes)
        gives = not given and (sure or lane not in self._dry or self._last[lane] >= step)
        same = question("step", first)
        self._answers.append(self._ranks.total(int(flag) + int(gives) * GIVES, same))

    def _next_batches(self) -> int | None:
        """How many ranks may have a batch in the next step; None if the run ends before it."""
        if self._ranks is None:
            return self._topology.world_size
        batches, flags = divmod(self._answers.popleft()(), GIVES)
        return batches if (flags > 0) == (self._end == "drain") else None

    def _any_has(self, number: int) -> bool:
        """Whether a lane of this rank has a batch of that number or a higher one."""
        if any(step * self._lanes + lane >= number for lane, step in self._last.items()):
            return True
        return any(self._has(lane, -((lane - number) // self._lanes)) for lane in self._last)

    def _all_have(self, step: int) -> bool:
        """Whether all lanes of this rank have a batch of that step."""
        return all(self._has(lane, step) for lane in self._last)

    # ------------------------------------------------------------------ looking ahead

    def _has(self, lane: int, step: int) -> bool:
        while self._last[lane] < step and lane not in self._dry:
            self._pull()
        return self._last[lane] >= step

    def _take(self, number: int) -> Any:
        """The item of that number, or a gap if its lane has no such batch."""
        lane, step = self._lane_step(number)
        if number < self._start:  # another rank's, when the run was that of fewer ranks
            return Gap(lane, step)
        if self._has(lane, step) and not self._ahead:
            self._pull()  # that may be the end of the lane, where it could not know sooner
        if not self._has(lane, step):
            return Gap(lane, step)
        found, item = self._ahead.popleft()
        assert found == number, f"batch {found} came in the place of {number}"
        return item

    def _lane_step(self, number: int) -> tuple[int, int]:
        return number % self._lanes, number // self._lanes

    def _pull(self) -> Any:
        """Take the next item in; None if there is none, and then all lanes are dry."""
        item = next(self._items, None)
        if item is None:
            self._dry.update(self._last)
            while self._unseen:
                self._gave_nothing(self._unseen.popleft())
            return None
        lane, step, has_next = item.lane, item.step, item.has_next
        number = step * self._lanes + lane
        while self._unseen and self._first[self._unseen[0]] <= number:
            unseen = self._unseen.popleft()
            if unseen != lane:
                self._gave_nothing(unseen)
        self._last[lane] = step + has_next
        if not has_next:
            self._dry.add(lane)
        self._ahead.append((number, item))
        return item

    def _gave_nothing(self, lane: int) -> None:
        """Record that a lane's first turn is over, whatever it was known to have."""
        self._dry.add(lane)
        self._last[lane] = min(self._last[lane], self._first[lane] // self._lanes - 1)
