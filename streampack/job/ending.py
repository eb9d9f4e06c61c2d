"""End of a finite run: on every rank after the same step, without losing a batch.

Batch g of a run comes from lane ``g % lanes``, so an exhausted lane leaves gaps, which the loader
fills with empty batches if another rank has a batch in the same step. A step in which no rank has a
batch is left out. The run continues while any rank has a batch, or (``end="stop"``) while every
lane has one. Ranks start a collective one step ahead and wait for its result when the step begins,
so that it overlaps with the model's computation.

All ranks start the same collectives in the same order, even if a loop is left early, because they
depend only on the index of the step.

Cost: one sum over ranks per step. No batch is held back, except that ``end="stop"`` waits until
every lane has a first one.
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

GIVES = 1 << 32  # unit of the number of ranks with a batch, above all flags in a sum over ranks


class Ranks(Protocol):
    """Collectives over the data-parallel ranks of a job."""

    def total(self, count: int, same: int = 0) -> Callable[[], int]:
        """Start a sum of `count` over the data-parallel ranks; the returned function waits for it.

        Every rank must call it in the same order with the same value of `same`, 24 bits. Otherwise
        the returned function raises `RankError` on all of them.
        """
        ...

    def highest(self, values: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
        """Start an elementwise maximum over the ranks; otherwise like `total`."""
        ...


def question(*what: object) -> int:
    """Return a 24-bit id of a collective, by which ranks detect that they call different ones."""
    return zlib.crc32(repr(what).encode()) >> 8


class OtherPlaceError(RankError):
    """Ranks called different collectives at the same time."""

    def __init__(self) -> None:
        super().__init__(
            "All ranks must be at the same step of the same run, and they are not.",
            "Pass the same arguments and load states of the same step on every rank; call "
            "set_weights and skip on all of them, after the same step and with the same numbers.",
        )

    def __reduce__(self) -> Any:
        return type(self), ()


class Alone:
    """A rank without others, which ends with its own lanes."""

    def total(self, count: int, same: int = 0) -> Callable[[], int]:
        """Return the rank's own count."""
        return lambda: count

    def highest(self, values: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
        """Return the rank's own values."""
        return lambda: values


@dataclass(frozen=True, slots=True)
class Gap:
    """Gap of an exhausted lane, in place of the batch with index ``step * lanes + lane``."""

    lane: int
    step: int


class Ending:
    """A rank's items in batch order, with gaps for exhausted lanes, up to the agreed end.

    Args:
        items: this rank's items in order of their indices, ``step * lanes + lane``; each has
            `lane`, `step` and `has_next`, True if its lane has another item.
        topology: topology of this rank.
        start: index of the first batch; lanes: number of lanes of the run.
        known: per lane, the number of batches that it is known to have, including batches before
            `start`; for an exhausted lane it is below its number of turns. Lanes may be missing.
        ranks: collectives of the ranks; None for an endless run, which needs none.
        end: "drain" delivers every batch, "stop" ends at the first rotation in which some lane has
            no batch.
        leaves_out: True to leave out steps that consist of gaps.
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
        rank_lanes = topology.lanes(start, lanes)
        numbers = [topology.batch(start, turn) for turn in range(len(rank_lanes))]
        self._first = {number % lanes: number for number in numbers}
        self._unseen = deque(self._first)  # lanes without a first item so far, in order
        # The last step that a lane is known to have. Delivered steps count, so that a run stopped
        # inside its last rotation continues to the end of the rotation.
        self._last = {lane: known.get(lane, 0) - 1 for lane in rank_lanes}
        self._dry: set[int] = set()  # lanes known to end with that step
        self._ahead: deque[tuple[int, Any]] = deque()  # pairs of index and item
        self._answers: deque[Callable[[], int]] = deque()  # pending results for coming steps

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
        """Yield the items that "stop" leaves over; call it once the iteration has ended."""
        yield from (item for _, item in self._ahead)
        self._ahead.clear()
        while (item := self._pull()) is not None:
            self._ahead.clear()
            yield item

    def end_lane(self, lane: int, steps: int) -> None:
        """Record that a lane ends after `steps` batches, counted over all ranks.

        It has no effect for a lane with a known end.
        """
        if lane not in self._dry:
            self._last[lane] = steps - 1
            self._dry.add(lane)

    # ------------------------------------------------------------------ agreeing

    def _ask(self, first: int) -> None:
        """Start the collective that decides if the step from batch `first` on is delivered."""
        if self._ranks is None:
            return
        number = first + self._topology.rank
        lane, step = self._lane_step(number)
        delivered = number < self._start
        sure = not delivered and self._last[lane] >= step  # true in nearly every step
        if self._end == "drain":
            flag = sure or self._any_has(max(first, self._start))
        else:
            flag = not self._all_have((first + self._topology.world_size - 1) // self._lanes)
        gives = not delivered and (sure or lane not in self._dry or self._last[lane] >= step)
        same = question("step", first)
        self._answers.append(self._ranks.total(int(flag) + int(gives) * GIVES, same))

    def _next_batches(self) -> int | None:
        """Return the number of ranks that may have a batch in the next step, or None at the end."""
        if self._ranks is None:
            return self._topology.world_size
        batches, flags = divmod(self._answers.popleft()(), GIVES)
        return batches if (flags > 0) == (self._end == "drain") else None

    def _any_has(self, number: int) -> bool:
        """Return True if a lane of this rank has a batch with this index or a higher one."""
        if any(step * self._lanes + lane >= number for lane, step in self._last.items()):
            return True
        return any(self._has(lane, -((lane - number) // self._lanes)) for lane in self._last)

    def _all_have(self, step: int) -> bool:
        """Return True if all lanes of this rank have a batch in that step."""
        return all(self._has(lane, step) for lane in self._last)

    # ------------------------------------------------------------------ looking ahead

    def _has(self, lane: int, step: int) -> bool:
        while self._last[lane] < step and lane not in self._dry:
            self._pull()
        return self._last[lane] >= step

    def _take(self, number: int) -> Any:
        """Return the item with this index, or a gap if its lane has no such batch."""
        lane, step = self._lane_step(number)
        if number < self._start:  # delivered by another rank, when the run had fewer ranks
            return Gap(lane, step)
        if self._has(lane, step) and not self._ahead:
            self._pull()  # this may reveal the end of the lane
        if not self._has(lane, step):
            return Gap(lane, step)
        index, item = self._ahead.popleft()
        assert index == number, f"batch {index} came in the place of {number}"
        return item

    def _lane_step(self, number: int) -> tuple[int, int]:
        return number % self._lanes, number // self._lanes

    def _pull(self) -> Any:
        """Read the next item ahead; return None if all lanes are exhausted."""
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
        """Record that a lane's first turn has passed."""
        self._dry.add(lane)
        self._last[lane] = min(self._last[lane], self._first[lane] // self._lanes - 1)
