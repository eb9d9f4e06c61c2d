"""Parts of trees: groups are divided at nodes where that fills rows, or makes them equal.

Sequences of a group are ordered depth first, so that each one shares its longest prefix with the
one before. A part is a range of them; where one begins, the path that it shares with the part
before is laid out once more. So a part's slots and cost are differences of cumulative sums.

Steps:
  1. A group that is longer than a row becomes the fewest parts that fit, as equal as the nodes
     allow.
  2. Parts go into the fewest rows that could hold them, by `equal_bins`. Where they do not fit,
     they are placed by decreasing size, and one that fits no row is divided: the row with most room
     takes as many of its sequences as fit. If even that fails, every rank gets one row more.
  3. Rows are dealt out to micro-batches of equal rows. While the costliest row of a micro-batch is
     above the mean by more than a hundredth, sequences of it move to one of the cheapest, from the
     node that makes the two most nearly equal, with the path that is laid out once more.

Cost: numpy over the sequences for each division; a few divisions per row.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampack.packers.microbatches import dealt, equal_bins

_EVEN = 0.01  # rows of a micro-batch are level if none is above their mean by more than this share
_HELPS = 1e-4  # a move helps that lowers the costliest row by this share
_CHEAPEST = 8  # rows that a move may go to

Numbers: TypeAlias = NDArray[np.int64] | int
#: (P, 3) int64: begin and end of a part among the sequences, and its row.
Parts: TypeAlias = NDArray[np.int64]


class Sequences(NamedTuple):
    """Sequences of all groups, each group's depth first.

    Attributes:
        groups: (G + 1,) int64 offsets of the groups.
        tokens, costs: (S + 1,) cumulative, of the tokens that a sequence does not share with the
            one before.
        path, path_cost: (S,) of the tokens that it does share, 0 where a group begins.
        align: a part takes a multiple of this number of slots.
    """

    groups: NDArray[np.int64]
    tokens: NDArray[np.int64]
    path: NDArray[np.int64]
    costs: NDArray[np.float64]
    path_cost: NDArray[np.float64]
    align: int

    def slots(self, begin: Numbers, end: Numbers) -> NDArray[np.int64]:
        """Return the slots of the parts [begin, end)."""
        slots = self.tokens[end] - self.tokens[begin] + self.path[begin]
        return np.asarray(-(-slots // self.align) * self.align)

    def work(self, begin: Numbers, end: Numbers) -> NDArray[np.float64]:
        """Return the costs of the parts [begin, end)."""
        return np.asarray(self.costs[end] - self.costs[begin] + self.path_cost[begin])

    def reach(self, begin: int, end: int, room: int) -> int:
        """Return the end of the longest part from `begin` that has at most `room` slots."""
        most = room // self.align * self.align - self.path[begin] + self.tokens[begin]
        return min(end, int(np.searchsorted(self.tokens, most, side="right")) - 1)


def place_parts(sequences: Sequences, capacity: int, ranks: int, least: int) -> tuple[Parts, int]:
    """Divide groups and place their parts; see the module's steps.

    Args:
        sequences: the sequences, none with more slots than `capacity`.
        capacity: slots of a row; ranks: number of ranks.
        least: lowest number of micro-batches per rank.

    Returns:
        The parts, their rows ``rank * count + micro-batch``; and `count`, micro-batches per rank.
    """
    spans = np.array(whole_or_fewest(sequences, capacity), dtype=np.int64).reshape(-1, 2)
    slots, work = sequences.slots(*spans.T), sequences.work(*spans.T)
    count = max(least, -(-int(slots.sum()) // (ranks * capacity)))
    while True:
        row = equal_bins(slots, work, ranks * count, capacity) if count else spans[:, 0]
        parts = None if row is None else np.column_stack([spans, row])
        if parts is None:
            parts = filled(sequences, ranks * count, capacity)
        if parts is not None:
            break
        count += 1
    if count:
        parts[:, 2] = dealt(parts[:, 2], sequences.work(*parts.T[:2]), ranks, count)
    for column in range(count):
        inside = parts[:, 2] % count == column
        rows = np.arange(ranks) * count + column
        parts = np.concatenate([parts[~inside], level(sequences, parts[inside], rows, capacity)])
    return parts, count


def whole_or_fewest(sequences: Sequences, capacity: int) -> list[tuple[int, int]]:
    """Return the spans of all groups, each whole, or in the fewest parts that fit, nearly equal."""
    return [
        span
        for low, high in pairwise(sequences.groups.tolist())
        for span in _fewest(sequences, low, high, capacity)
    ]


def _fewest(sequences: Sequences, low: int, high: int, capacity: int) -> list[tuple[int, int]]:
    spans = _longest(sequences, low, high, capacity)
    least, most = capacity // len(spans), capacity
    while len(spans) > 1 and least < most:  # search the lowest capacity that needs no more parts
        middle = (least + most) // 2
        tried = _longest(sequences, low, high, middle)
        if tried and len(tried) <= len(spans):
            spans, most = tried, middle
        else:
            least = middle + 1
    return spans


def _longest(sequences: Sequences, low: int, high: int, capacity: int) -> list[tuple[int, int]]:
    """Return the longest parts that fit, in turn; none if a sequence alone is too long."""
    spans = []
    while low < high:
        end = sequences.reach(low, high, capacity)
        if end <= low:
            return []
        spans.append((low, end))
        low = end
    return spans


def filled(sequences: Sequences, bins: int, capacity: int) -> Parts | None:
    """Run the second half of step 2; None if a sequence fits no row."""
    waiting = [
        (-int(sequences.slots(*span)), *span) for span in pairwise(sequences.groups.tolist())
    ]
    heapq.heapify(waiting)
    used = np.zeros(bins, dtype=np.int64)
    parts = []
    while waiting:
        _, low, high = heapq.heappop(waiting)
        row = int(used.argmin())
        end = sequences.reach(low, high, capacity - int(used[row]))
        if end <= low:
            return None
        parts.append((low, end, row))
        used[row] += sequences.slots(low, end)
        if end < high:
            heapq.heappush(waiting, (-int(sequences.slots(end, high)), end, high))
    return np.array(parts, dtype=np.int64)


def level(sequences: Sequences, parts: Parts, rows: NDArray[np.int64], capacity: int) -> Parts:
    """Run step 3 on the parts of one micro-batch, which lie in `rows`."""
    while True:
        begin, end, row = parts.T
        work, slots = sequences.work(begin, end), sequences.slots(begin, end)
        load = np.array([work[row == number].sum() for number in rows])
        used = np.array([slots[row == number].sum() for number in rows])
        high = int(load.argmax())
        if load[high] <= (1 + _EVEN) * load.mean():
            return parts
        best = (load[high] * (1 - _HELPS), 0, (0, 0), (0, 0), 0)
        for low in np.argsort(load, kind="stable")[:_CHEAPEST].tolist():
            for i in np.flatnonzero(row == rows[high]).tolist():
                move = _move(sequences, parts[i], load[[high, low]], capacity - int(used[low]))
                best = min(
                    best, (*move[:1], i, *move[1:], int(rows[low])), key=lambda move: move[0]
                )
        _, i, moved, stays, target = best
        if moved == stays:
            return parts
        parts[i, :2] = stays
        parts = np.concatenate([parts, [(*moved, target)]])
        parts = parts[parts[:, 0] < parts[:, 1]]


def _move(
    sequences: Sequences, part: NDArray[np.int64], loads: NDArray[np.float64], room: int
) -> tuple[float, tuple[int, int], tuple[int, int]]:
    """Return the best move of a part, its end or its beginning to another row.

    Args:
        part: (3,) its range and row.
        loads: (2,) costs of its row and of the other one; room: slots that the latter has left.

    Returns:
        The higher cost of both rows after it, the range that moves, the range that stays.
    """
    begin, end, _ = part.tolist()
    node = np.arange(begin, end)
    before, after = sequences.work(begin, node), sequences.work(node, end)
    before[0] = 0.0  # an empty range, whose path is not laid out
    ends = np.maximum(loads[0] - after[0] + before, loads[1] + after)
    ends[sequences.slots(node, end) > room] = np.inf
    begins = np.maximum(loads[0] - after[0] + after, loads[1] + before)
    begins[sequences.slots(begin, node) > room] = np.inf
    if ends.min() <= begins.min():
        at = int(node[ends.argmin()])
        return float(ends.min()), (at, end), (begin, at)
    at = int(node[begins.argmin()])
    return float(begins.min()), (begin, at), (at, end)
