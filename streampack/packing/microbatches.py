"""Micro-batches for ranks in step: which document goes into which row of which rank.

Each micro-batch is one row, and all ranks have the same number of them. Ranks that share a model
wait for each other in every micro-batch, so those at the same place are to cost the same, and where
ranks wait for each other only at the end of the step, their sums are to.

Steps, where documents or groups may go anywhere:
  1. As few micro-batches per rank as best-fit-decreasing finds to hold them, or as many as asked.
  2. Units (documents, or groups that share a row) go into rows of nearly equal cost (`equal_bins`).
  3. Rows by decreasing cost: the first ones of all ranks are the costliest, and so on; of those at
     one place the costliest goes to the rank that has the least so far.
  4. A seeded shuffle of the places, and of the ranks.

Groups that share a rank, but not a row, are first divided among the ranks (`equal_bins`), and then
steps 2 and 3 are each rank's own. Where a rank's documents do not fit so many rows, all have one
more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.documents.ragged import offsets_of
from streampack.errors import PlanError
from streampack.packing.equal_bins import bins_needed, equal_bins
from streampack.packing.rng import derive_seed, permutation


class Units(NamedTuple):
    """What is placed as one.

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
        """Documents (N,) by themselves, or those of a unit (N,) together."""
        if unit is None:
            return cls(np.arange(len(sizes), dtype=np.int64), sizes, costs)
        count = int(unit.max(initial=-1)) + 1
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, unit, sizes)
        cost = np.zeros(count, dtype=np.float64)
        np.add.at(cost, unit, costs)
        return cls(unit, total, cost)


def place_in_rows(
    units: Units,
    seq_len: int,
    ranks: int,
    *,
    rank_groups: NDArray[np.int64] | None,
    microbatches: int | None,
    seed: int,
) -> tuple[int, NDArray[np.int64]]:
    """Micro-batches per rank, and (N,) int64 the row of each document; see the module's docstring.

    Rank r has the rows ``[r * microbatches, (r + 1) * microbatches)``; some may be empty.

    Args:
        units: what shares a row; none is larger than seq_len.
        seq_len: slots of a row.
        ranks: how many there are.
        rank_groups: (U,) int64, the group of each unit, which shares a rank; None for none.
        microbatches: per rank; None for as few as are found.
        seed: of the order of places and ranks.

    Raises:
        PlanError: they do not fit into so many micro-batches.
    """
    count = max(-(-bins_needed(units.sizes, seq_len) // ranks), microbatches or 0)
    if rank_groups is None:
        row = equal_bins(units.sizes, units.costs, ranks * count, seq_len) if count else None
        rows = (
            np.zeros(0, dtype=np.int64) if row is None else _dealt(row, units.costs, ranks, count)
        )
    else:
        count, rows = _by_ranks(units, rank_groups, seq_len, ranks, count)
    if microbatches is not None and count > microbatches:
        raise PlanError(
            f"The documents do not fit into {microbatches} micro-batches per rank.",
            "Some of them would have no place.",
            f'Pass microbatches={count}, or leave it at "equal"; or pass a larger seq_len.',
        )
    place = permutation(count, derive_seed(seed, 0))
    rank = permutation(ranks, derive_seed(seed, 1))
    if count:  # else there are no documents
        rows = rank[rows // count] * count + place[rows % count]
    return count, rows[units.unit]


def _by_ranks(
    units: Units, groups: NDArray[np.int64], seq_len: int, ranks: int, count: int
) -> tuple[int, NDArray[np.int64]]:
    """The same for groups that share a rank, before the shuffle: (U,) rows of units.

    There are `count` micro-batches, or as many more as it takes.
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
        own = np.flatnonzero(rank == r)
        if not len(own):
            continue
        row = equal_bins(units.sizes[own], units.costs[own], count, seq_len)
        if row is None:
            return None
        rows[own] = r * count + _dealt(row, units.costs[own], 1, count)
    return rows


def _dealt(
    row: NDArray[np.int64], costs: NDArray[np.float64], ranks: int, count: int
) -> NDArray[np.int64]:
    """(U,) int64 rows numbered by rank and place: step 3."""
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


def grouped_rows(
    row: NDArray[np.int64], unit: NDArray[np.int64], rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows + 1,) int64 offsets into (N,) int64 documents by row, those of a unit side by side."""
    order = np.lexsort((np.arange(len(row)), unit, row))
    return offsets_of(np.bincount(row, minlength=rows)), order
