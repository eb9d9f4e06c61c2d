"""Equal bins: units of some size and cost in bins of limited size and nearly equal cost.

Steps:
  1. Units by decreasing cost, each into the bin of least cost that has room. If one has no room
     anywhere, units lie as best-fit-decreasing puts them, which leaves no room for balance but
     holds more.
  2. The costliest bin is paired with the cheapest, the next with the next, and so on; of each pair
     one unit is moved, or two are exchanged, so that the two cost as nearly the same as possible.
     When no pair can be improved, each bin is paired with the one after, and so on.

Cost: O(units * bins) for step 1. In step 2 every change makes the sum of squared costs smaller; it
ends when bins are within a thousandth of each other, when nothing helps, or after so many
comparisons per unit, which no clock decides. So the result is the same on any machine.

Sources: step 1 is Graham's longest-processing-time rule (1969) with a limit on sizes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.packing.decreasing import BestFitDecreasing

_COMPARISONS = 300  # for every unit
_MOST = (1 << 31) - 1  # of a capacity of best-fit-decreasing
_PARTNERS = 64  # bins that a bin is paired with, at most


def bins_needed(sizes: NDArray[np.int64], capacity: int) -> int:
    """Bins that best-fit-decreasing takes; no size is above `capacity`."""
    return _best_fit(sizes, capacity)[0]


def equal_bins(
    sizes: NDArray[np.int64], costs: NDArray[np.float64], bins: int, capacity: int
) -> NDArray[np.int64] | None:
    """(N,) int64: the bin of each unit, or None if no way is found to fit them.

    A way is found if there are as many bins as `bins_needed`, and capacity is below 2 ** 31.

    Args:
        sizes: (N,) int64, above 0; no bin holds more than `capacity` of them together.
        costs: (N,) float64, at least 0.
        bins: how many there are, above 0.
    """
    place = np.empty(len(sizes), dtype=np.int64)
    order = np.lexsort((-sizes, -costs))
    if not _spread(order, sizes, costs, bins, capacity, place):
        if capacity > _MOST:
            return None
        needed, place = _best_fit(sizes, capacity)
        if needed > bins:
            return None
    if len(sizes) and bins > 1:
        _even_out(place, sizes, costs, bins, capacity, _COMPARISONS * (len(sizes) + 1000))
    return place


def _best_fit(sizes: NDArray[np.int64], capacity: int) -> tuple[int, NDArray[np.int64]]:
    if not len(sizes):
        return 0, np.zeros(0, dtype=np.int64)
    plan = BestFitDecreasing(seq_len=max(capacity, 2)).plan(sizes, final=True, seed=0)
    place = np.empty(len(sizes), dtype=np.int64)
    place[plan.document] = np.repeat(np.arange(plan.num_rows), np.diff(plan.row_offsets))
    return plan.num_rows, place


@kernel
def _spread(
    order: NDArray[np.int64],
    sizes: NDArray[np.int64],
    costs: NDArray[np.float64],
    bins: int,
    capacity: int,
    place: NDArray[np.int64],
) -> bool:
    """Step 1; False if a unit has no room."""
    used = np.zeros(bins, dtype=np.int64)
    load = np.zeros(bins, dtype=np.float64)
    for unit in order:
        best = -1
        for b in range(bins):
            if used[b] + sizes[unit] <= capacity and (best < 0 or load[b] < load[best]):
                best = b
        if best < 0:
            return False
        place[unit] = best
        used[best] += sizes[unit]
        load[best] += costs[unit]
    return True


@kernel
def _even_out(
    place: NDArray[np.int64],
    sizes: NDArray[np.int64],
    costs: NDArray[np.float64],
    bins: int,
    capacity: int,
    comparisons: int,
) -> None:
    """Step 2, in place."""
    used = np.zeros(bins, dtype=np.int64)
    load = np.zeros(bins, dtype=np.float64)
    for unit in range(len(place)):
        used[place[unit]] += sizes[unit]
        load[place[unit]] += costs[unit]
    near = load.sum() / bins * 1e-3
    offsets = np.zeros(bins + 2, dtype=np.int64)
    members = np.empty(len(place), dtype=np.int64)
    shift = 0
    while shift < min(bins, _PARTNERS) and comparisons > 0:
        order = np.argsort(-load, kind="mergesort")
        if load[order[0]] - load[order[bins - 1]] <= near:
            break
        comparisons -= len(place) + 8 * bins  # what the pass costs by itself
        offsets[:] = 0
        for unit in range(len(place)):
            offsets[place[unit] + 2] += 1
        for b in range(bins):
            offsets[b + 2] += offsets[b + 1]
        for unit in range(len(place)):
            members[offsets[place[unit] + 1]] = unit
            offsets[place[unit] + 1] += 1
        better = False
        for i in range(bins):
            j = bins - 1 - i - shift
            if j <= i:
                break
            high, low = order[i], order[j]
            gap = load[high] - load[low]
            if gap <= near:
                continue
            # What moves from `high` to `low` changes the gap by twice its cost.
            best, give, take = gap, np.int64(-1), np.int64(-1)
            for h in range(offsets[high], offsets[high + 1]):
                unit = members[h]
                for k in range(offsets[low] - 1, offsets[low + 1]):
                    other = members[k] if k >= offsets[low] else np.int64(-1)
                    cost = costs[unit] - (costs[other] if other >= 0 else 0.0)
                    left = abs(gap - 2 * cost)
                    if left >= best:
                        continue
                    size = sizes[unit] - (sizes[other] if other >= 0 else 0)
                    if used[low] + size <= capacity and used[high] - size <= capacity:
                        best, give, take = left, unit, other
                comparisons -= offsets[low + 1] - offsets[low] + 1
            if best > gap - near:
                continue
            better = True
            place[give] = low
            size, cost = sizes[give], costs[give]
            if take >= 0:
                place[take] = high
                size, cost = size - sizes[take], cost - costs[take]
            used[low] += size
            used[high] -= size
            load[low] += cost
            load[high] -= cost
        shift = 0 if better else shift + 1
