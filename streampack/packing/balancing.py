"""Balanced work: which rows go when, so that attention costs all ranks about the same in a step.

Every batch has the same number of slots, so linear layers cost the same for all of them. Attention
costs the sum of the squared document lengths, and that differs; so do the patches of images, which
a vision tower reads. In a step the ranks take the batches of one rotation (one batch of every
lane), and no lane knows what the others hold. So all lanes follow one schedule: it says which costs
the rows of a lane's batch number s should have, and depends on s alone.

Steps:
  1. Before the run, the costs of rows are measured on a sample: `quantiles`, the same in all lanes.
  2. The distribution is divided into as many equal strata as a batch has rows, and batch s takes
     one cost from each: at the s-th place of the van der Corput sequence in the even strata,
     mirrored in the odd ones. Any run of batches covers the distribution evenly, and batches of
     several rows differ little.
  3. Each round, `choose_by_cost` goes through the costs that the round's batches should have,
     highest first, and takes the row nearest to each, among rows whose documents' earlier tokens
     go too. Rows that must go are placed first.
  4. `order_by_cost` puts the rows that go in the places of the schedule: the costliest row in the
     costliest place, and so on.

Rows that a lane has too many of wait in its window. So a document far longer than the average waits
until long documents are due, which come from the other lanes in the same step. If too many costly
rows wait, the lane asks for higher costs than the schedule has (`_shift`).

Costs are integers: the squared lengths of a row's documents, summed, per slot of the row. That is
the length of the document that the token in an average slot belongs to. By patches a row costs as
many as it has. Nothing is thrown away.

Cost: O(rows log rows), and a search outwards from each cost, which is short unless the window holds
other rows than the schedule wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.arguments import one_of
from streampack.documents.blocks import Fields
from streampack.errors import ConfigError
from streampack.packing.limits import row_weights
from streampack.packing.plan import Plan

if TYPE_CHECKING:
    from streampack.run.recipe import Recipe


_STEPS = 128  # between the least and the greatest cost of a measured distribution
_BEARABLE = 1152  # mean cost of the rows to choose from, over the schedule's mean, in 1024ths
_BITS = 32  # of a place in the van der Corput sequence


@dataclass(frozen=True)
class Balance:
    """The schedule of costs that all lanes of a run follow.

    Args:
        quantiles: of the costs of rows, ascending, from the least to the greatest at equal steps;
            None while they are not measured.
        kind: "attention", or the document field that is a row's cost.
    """

    quantiles: tuple[int, ...] | None = None
    kind: str = "attention"

    @classmethod
    def measured(cls, costs: NDArray[np.int64], kind: str = "attention") -> Balance:
        """The schedule for rows of these costs (R,); at least one."""
        places = (np.arange(_STEPS + 1, dtype=np.int64) * (len(costs) - 1) + _STEPS // 2) // _STEPS
        return cls(tuple(np.sort(costs)[places].tolist()), kind)

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Balance:
        """The measured schedule whose `describe` gave `description`."""
        return cls(tuple(description["quantiles"]), description["kind"])

    def costs(self, plan: Plan, weights: Fields) -> NDArray[np.int64]:
        """(R,) int64: of the plan's rows, whose documents have these weights (N,) by name."""
        if self.kind == "attention":
            return row_costs(plan)
        return row_weights(plan, weights[self.kind])

    def wanted(
        self, step: int, batches: int, rows_per_batch: int, pool: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """(batches * rows_per_batch,) int64: costs of the rows of the lane's batches from `step`.

        They are in the order of the batches. `pool` are the costs (C,) of the rows to choose from,
        C > 0; if they are far above the schedule, the wanted costs are raised (`_shift`).
        """
        assert self.quantiles is not None
        shift = 0 if pool is None else _shift(pool, self.quantiles)
        table = np.array(self.quantiles, dtype=np.int64)
        place = _van_der_corput(step, batches)[:, None]
        stratum = np.arange(rows_per_batch, dtype=np.int64)
        inside = np.where(stratum % 2, (1 << _BITS) - 1 - place, place)
        # A quantile is (stratum + inside / 2 ** 32) / rows_per_batch; all of it in 62 bits.
        at = ((stratum << _BITS) + inside) // rows_per_batch
        at = np.clip(at + shift, 0, (1 << _BITS) - 1) * (len(table) - 1)
        index, part = at >> _BITS, (at & ((1 << _BITS) - 1)) >> (_BITS // 2)
        following = table[np.minimum(index + 1, len(table) - 1)]
        costs = table[index] + ((following - table[index]) * part >> (_BITS // 2))
        return np.asarray(costs.ravel(), dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        """JSON-able identity for the fingerprint."""
        return {
            "kind": self.kind,
            "revision": 1,
            "quantiles": None if self.quantiles is None else list(self.quantiles),
        }


def _shift(pool: NDArray[np.int64], quantiles: tuple[int, ...]) -> int:
    """By how much quantiles are raised, in units of 2 ** -32, for rows of these costs (C,), C > 0.

    0 as long as their mean is at most an eighth above the schedule's; from there on a quarter of
    the excess. So a lane whose documents are longer than the sample's puts them into its costlier
    batches, where the other lanes have long documents too, and does not keep so many that it
    lacks cheap rows.
    """
    usual = max(sum(quantiles) // len(quantiles), 1)
    excess = (int(pool.sum()) << 10) // (len(pool) * usual) - _BEARABLE
    return min(max(excess, 0), 1 << 10) << (_BITS - 12)


def _van_der_corput(first: int, count: int) -> NDArray[np.int64]:
    """(count,) int64 in [0, 2 ** 32): the bits of first, first + 1, ... in reverse."""
    number = (np.arange(count, dtype=np.int64) + first) & ((1 << _BITS) - 1)
    place = np.zeros(count, dtype=np.int64)
    for bit in range(_BITS):
        place |= (number >> bit & 1) << (_BITS - 1 - bit)
    return place


def row_costs(plan: Plan) -> NDArray[np.int64]:
    """(R,) int64: squared lengths of a row's documents, summed, over its slots.

    Both factors are below 2 ** 31, so the sum of a row is below 2 ** 62.
    """
    size = plan.stop - plan.start + plan.insert_eos
    sums = np.zeros(plan.num_segments + 1, dtype=np.uint64)  # differences are right modulo 2 ** 64
    np.cumsum((size * size).astype(np.uint64), out=sums[1:])
    total = sums[plan.row_offsets[1:]] - sums[plan.row_offsets[:-1]]
    return np.asarray(total.astype(np.int64) // plan.seq_len, dtype=np.int64)


def order_by_cost(
    rows: NDArray[np.int64], costs: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(E,) int64: `rows` (E,) in the order of the schedule.

    Args:
        rows: row numbers; ties of their costs keep this order.
        costs: (R,) int64, of all rows.
        wanted: (E or more,) int64, the costs of the places, in order; further ones are not used.
    """
    places = np.argsort(wanted[: len(rows)], kind="stable")
    ordered = np.empty_like(rows)
    ordered[places] = rows[np.argsort(costs[rows], kind="stable")]
    return ordered


def choose_by_cost(
    pool: NDArray[np.int64],
    costs: NDArray[np.int64],
    forced: NDArray[np.int64],
    wanted: NDArray[np.int64],
    before_offsets: NDArray[np.int64],
    before: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Which rows of the pool go: as many as there are costs wanted, or as many as can.

    Args:
        pool: (C,) int64 row numbers, cheap ones first. With a row, the rows before it are there.
        costs: (R,) int64, of all rows.
        forced: (F,) int64 rows of the pool that go in any case, with all rows before them;
            F <= E.
        wanted: (E,) int64.
        before_offsets, before: for every row, the rows that go only before it or with it (ragged).

    Returns:
        (at most E,) int64 rows, those that must go first; with a row, the rows before it go too.
    """
    costliest_first = forced[np.argsort(-costs[forced], kind="stable")]
    return _choose(
        pool, costs, costliest_first, np.sort(wanted)[::-1].copy(), before_offsets, before
    )


@kernel
def _choose(
    rows: NDArray[np.int64],
    costs: NDArray[np.int64],
    forced: NDArray[np.int64],
    wanted: NDArray[np.int64],
    before_offsets: NDArray[np.int64],
    before: NDArray[np.int64],
) -> NDArray[np.int64]:
    """`rows` ascend in cost, `forced` and `wanted` descend."""
    chosen = np.empty(len(wanted), dtype=np.int64)
    taken = np.zeros(len(wanted), dtype=np.bool_)
    goes = np.zeros(len(costs), dtype=np.bool_)
    count = 0
    for row in forced:  # each takes the nearest place that is free
        best = -1
        for i in range(len(wanted)):
            distance = abs(wanted[i] - costs[row])
            if not taken[i] and (best < 0 or distance < abs(wanted[best] - costs[row])):
                best = i
        taken[best] = True
        goes[row] = True
        chosen[count] = row
        count += 1
    costlier = costs[rows]
    for i in range(len(wanted)):
        if taken[i]:
            continue
        high = np.searchsorted(costlier, wanted[i])
        low = high - 1
        found = np.int64(-1)
        while found < 0 and (low >= 0 or high < len(rows)):
            up = high < len(rows)
            if up and low >= 0:
                up = costlier[high] - wanted[i] < wanted[i] - costlier[low]
            row = rows[high] if up else rows[low]
            if up:
                high += 1
            else:
                low -= 1
            if goes[row]:
                continue
            ready = True
            for k in range(before_offsets[row], before_offsets[row + 1]):
                ready = ready and (before[k] == row or goes[before[k]])
            if ready:
                found = row
        if found < 0:
            break
        goes[found] = True
        chosen[count] = found
        count += 1
    return chosen[:count]


def add(recipe: Recipe, kind: str) -> None:
    """Add the schedule that the packer's `balance` asks for, to be measured.

    Raises:
        ConfigError: it is unknown, or there is nothing to be balanced.
    """
    one_of("balance", kind, ["attention", *recipe.packer.weights])
    if recipe.attention == "row" and kind == "attention":
        raise ConfigError(
            'The packer has balance="attention", and attention is "row": all rows cost the same.',
            "Leave out balance=.",
            setting="balance",
        )
    if len(recipe.packer.seq_lens) == 1:  # rows of several lengths have a schedule of their own
        recipe.balance = Balance(kind=kind)
