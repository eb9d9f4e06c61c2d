"""Balanced micro-batches: assigns every document to a row of a rank.

Each micro-batch is one row, and all ranks have the same number of them. Ranks that share a model
wait for each other in every micro-batch, so micro-batches with the same index should cost the same.
Ranks that wait only at the end of the step should have equal sums.

Steps, where documents or groups may go to any rank:
  1. The number of micro-batches per rank is the one requested, or the fewest in which
     best-fit-decreasing places all documents.
  2. Units (documents, or groups that share a row) go into rows of nearly equal cost (`equal_bins`).
  3. Rows are sorted by decreasing cost and dealt out: the first row of every rank is among the
     costliest, and so on. Of the rows with one index, the costliest goes to the rank with the
     lowest sum so far.
  4. The indices are put into the requested order. The ranks are shuffled with the seed.

Groups that share a rank, but not a row, are first divided among the ranks (`equal_bins`); steps 2
and 3 then run for each rank. If a rank's documents do not fit the number of rows, every rank gets
one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel_of
from streampack.documents.blocks import offsets_of
from streampack.errors import PlanError
from streampack.packing.fit_decreasing import BestFitDecreasing
from streampack.packing.rng import derive_seed, permutation

_COMPARISONS = 300  # maximum number of comparisons per unit
_MOST = (1 << 31) - 1  # largest capacity of best-fit-decreasing
_PARTNERS = 64  # largest number of bins that a bin is paired with


def bins_needed(sizes: NDArray[np.int64], capacity: int) -> int:
    """Return the number of bins that best-fit-decreasing opens; no size is above `capacity`."""
    return _best_fit(sizes, capacity)[0]


def equal_bins(
    sizes: NDArray[np.int64], costs: NDArray[np.float64], bins: int, capacity: int
) -> NDArray[np.int64] | None:
    """Assign units to bins of nearly equal cost.

    Steps:
      1. Units by decreasing cost, each into the bin of least cost that has room. If a unit fits no
         bin, all units are placed by best-fit-decreasing instead, which holds more and balances
         less.
      2. The costliest bin is paired with the cheapest, the next with the next, and so on; in each
         pair one unit is moved, or two are exchanged, to make the two costs as equal as possible.
         When no pair can be improved, each bin is paired with the one after, and so on.

    Cost: O(units * bins) for step 1. In step 2 every change reduces the sum of squared costs; it
    ends when bins are within a thousandth of each other, when nothing helps, or after a fixed
    number of comparisons per unit. No clock is involved, so the result is the same on any machine.

    Sources: step 1 is Graham's longest-processing-time rule (1969) with a limit on sizes.

    Args:
        sizes: (N,) int64, above 0; the sizes in a bin add up to at most `capacity`.
        costs: (N,) float64, at least 0.
        bins: number of bins, above 0.

    Returns:
        The bin (N,) int64 of each unit, or None if the units do not fit. They always fit
        `bins_needed` bins with a capacity below 2 ** 31.
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


@kernel_of(lambda order, sizes, costs, bins, *_: order.size * bins)
def _spread(
    order: NDArray[np.int64],
    sizes: NDArray[np.int64],
    costs: NDArray[np.float64],
    bins: int,
    capacity: int,
    place: NDArray[np.int64],
) -> bool:
    """Run step 1; return False if a unit fits no bin."""
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


@kernel_of(lambda place, *_: 200 * place.size)
def _even_out(
    place: NDArray[np.int64],
    sizes: NDArray[np.int64],
    costs: NDArray[np.float64],
    bins: int,
    capacity: int,
    comparisons: int,
) -> None:
    """Run step 2 in place."""
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
        comparisons -= len(place) + 8 * bins  # cost of the pass itself
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
            # Moving a unit from `high` to `low` changes the gap by twice its cost.
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


#: Order of micro-batches: seeded, by decreasing cost, or rising to the costliest and falling.
Order = Literal["shuffled", "decreasing", "peaked"]


class Units(NamedTuple):
    """Units of placement: documents, or groups that share a row.

    Attributes:
        unit: (N,) int64, the unit of each document.
        sizes: (U,) int64 slots; costs: (U,) float64.
    """

    unit: NDArray[np.int64]
    sizes: NDArray[np.int64]
    costs: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        sizes: NDArray[np.int64],
        costs: NDArray[np.float64],
        unit: NDArray[np.int64] | None = None,
    ) -> Units:
        """Make a unit of every document (N,), or of the documents with equal `unit` (N,)."""
        if unit is None:
            return cls(np.arange(len(sizes), dtype=np.int64), sizes, costs)
        count = int(unit.max(initial=-1)) + 1
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, unit, sizes)
        cost = np.zeros(count, dtype=np.float64)
        np.add.at(cost, unit, costs)
        return cls(unit, total, cost)


def check_groups(
    units: Units, names: Sequence[Any], seq_len: int, counted: str, remedy: str
) -> None:
    """Check that groups with these names, which are the units, fit a row of tokens or slots.

    Raises:
        PlanError: a group is longer than a row.
    """
    if not names or units.sizes.max(initial=0) <= seq_len:
        return
    i = int(np.argmax(units.sizes))
    raise PlanError(
        f"The documents of group {names[i]!r} have {units.sizes[i]} {counted} together, a row "
        f"has {seq_len}.",
        f"Pass seq_len={units.sizes[i]} or more, or {remedy}.",
        setting="seq_len",
    )


def place_in_rows(
    units: Units,
    seq_len: int,
    ranks: int,
    *,
    rank_groups: NDArray[np.int64] | None,
    microbatches: int | None,
    order: Order,
    seed: int,
) -> tuple[int, NDArray[np.int64]]:
    """Return the micro-batches per rank and the row (N,) int64 of each document.

    Rank r has the rows ``[r * microbatches, (r + 1) * microbatches)``; some may be empty. The
    module's docstring has the steps.

    Args:
        units: units of placement, none larger than seq_len.
        seq_len: slots per row.
        ranks: number of ranks.
        rank_groups: (U,) int64, group of each unit; a group stays on one rank. None without groups.
        microbatches: micro-batches per rank; None for the fewest found.
        order: order of the micro-batches, by cost.
        seed: seed of the order of ranks, and of micro-batches if they are shuffled.

    Raises:
        PlanError: the units do not fit into that number of micro-batches.
    """
    count = max(-(-bins_needed(units.sizes, seq_len) // ranks), microbatches or 0)
    if rank_groups is None:
        row = equal_bins(units.sizes, units.costs, ranks * count, seq_len) if count else None
        rows = np.zeros(0, dtype=np.int64) if row is None else dealt(row, units.costs, ranks, count)
    else:
        count, rows = _by_ranks(units, rank_groups, seq_len, ranks, count)
    rows = put_in_order(rows, ranks, count, order=order, seed=seed, microbatches=microbatches)
    return count, rows[units.unit]


def put_in_order(
    rows: NDArray[np.int64],
    ranks: int,
    count: int,
    *,
    order: Order,
    seed: int,
    microbatches: int | None,
) -> NDArray[np.int64]:
    """Run step 4: return the rows (U,) int64 of units, from rows that are numbered as `dealt` does.

    Raises:
        PlanError: there are more micro-batches than requested.
    """
    if microbatches is not None and count > microbatches:
        raise PlanError(
            f"The documents do not fit into {microbatches} micro-batches per rank.",
            f'Pass microbatches={count}, or leave it at "equal"; or pass a larger seq_len.',
            setting="microbatches",
        )
    if not count:  # without documents
        return rows
    place = _places(count, order, seed)
    rank = permutation(ranks, derive_seed(seed, 1))
    return np.asarray(rank[rows // count] * count + place[rows % count])


def _places(count: int, order: Order, seed: int) -> NDArray[np.int64]:
    """Return the places (count,) int64 of micro-batches that are sorted by decreasing cost."""
    if order == "shuffled":
        return permutation(count, derive_seed(seed, 0))
    place = np.arange(count, dtype=np.int64)
    if order == "peaked":
        cheapest_first = place[::-1].copy()
        place[np.append(cheapest_first[::2], cheapest_first[1::2][::-1])] = np.arange(count)
    return place


def _by_ranks(
    units: Units, groups: NDArray[np.int64], seq_len: int, ranks: int, count: int
) -> tuple[int, NDArray[np.int64]]:
    """Place groups that share a rank: return the row (U,) of each unit, before the shuffle.

    There are `count` micro-batches per rank, or more if the documents of a rank need them.
    """
    grouped = Units.of(units.sizes, units.costs, groups)
    count = max(count, -(-int(grouped.sizes.max(initial=0)) // seq_len))
    while True:
        rank = equal_bins(grouped.sizes, grouped.costs, ranks, count * seq_len)
        rows = None if rank is None else _rows_of_ranks(units, rank[groups], seq_len, ranks, count)
        if rows is not None:
            return count, rows
        count += 1


def _rows_of_ranks(
    units: Units, rank: NDArray[np.int64], seq_len: int, ranks: int, count: int
) -> NDArray[np.int64] | None:
    rows = np.empty(len(rank), dtype=np.int64)
    for r in range(ranks):
        members = np.flatnonzero(rank == r)
        if not len(members):
            continue
        row = equal_bins(units.sizes[members], units.costs[members], count, seq_len)
        if row is None:
            return None
        rows[members] = r * count + dealt(row, units.costs[members], 1, count)
    return rows


def dealt(
    row: NDArray[np.int64], costs: NDArray[np.float64], ranks: int, count: int
) -> NDArray[np.int64]:
    """Run step 3: return the rows (U,) int64, numbered by rank and index in the rank."""
    loads = np.zeros(ranks * count, dtype=np.float64)
    np.add.at(loads, row, costs)
    by_cost = np.argsort(-loads, kind="stable").reshape(count, ranks)
    number = np.empty(ranks * count, dtype=np.int64)
    sums = np.zeros(ranks, dtype=np.float64)
    for place, rows in enumerate(by_cost):
        least_first = np.argsort(sums, kind="stable")
        number[rows] = least_first * count + place
        sums[least_first] += loads[rows]
    return number[row]


def documents_by_row(
    row: NDArray[np.int64], unit: NDArray[np.int64], rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return offsets (rows + 1,) into documents (N,) by row, int64; a unit's are adjacent."""
    order = np.lexsort((np.arange(len(row)), unit, row))
    return offsets_of(np.bincount(row, minlength=rows)), order
