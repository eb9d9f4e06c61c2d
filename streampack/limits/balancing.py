"""Balanced work: a schedule of row costs, so that attention costs all ranks the same in a step.

Every batch has the same number of slots, so linear layers cost the same for all of them. Attention
costs the sum of the squared document lengths, which differs between batches; so do the number of
image patches, which a vision tower reads. In a step the ranks take the batches of one rotation (one
batch of every lane), and no lane knows the rows of the others. So all lanes follow one schedule: it
gives the costs that the rows of a lane's batch with index s should have, and depends on s alone.

Steps:
  1. Before the run, the costs of rows are measured on a sample: `quantiles`, the same in all lanes.
  2. The distribution is divided into as many equal strata as a batch has rows, and batch s takes
     one cost from each: at element s of the van der Corput sequence in the even strata, mirrored
     in the odd ones. Any run of batches covers the distribution evenly, and batches of several
     rows differ little.
  3. Each round, `choose_by_cost` takes the target costs of the round's batches, highest first, and
     selects the row nearest to each, provided that the earlier tokens of its documents go too.
     Rows that must go are placed first.
  4. `order_by_cost` assigns the selected rows to positions of the schedule: the costliest row to
     the costliest position, and so on.

A lane keeps surplus rows of a cost in its window. So a document far longer than the average waits
until long documents are due, and the other lanes deliver theirs in the same step. If too many
costly rows wait, the lane raises its target costs above the schedule (`_shift`).

Costs are integers: the sum of the squared lengths of a row's documents, per slot of the row. That
is the length of the document in an average slot. With patches or loss tokens, a row costs their
number. No token is dropped.

Loss tokens are no work, and a step is the sum of its batches: were they balanced like the others,
some steps would learn next to nothing. So lanes follow the schedule at different phases
(`LossBalance`): the targets of a step's batches are spread over the whole distribution, and add up
to about the same sum in every step. `even_rows` makes the rows themselves more alike.

Cost: O(rows log rows), and a search outwards from each target cost, which is short unless the
window's rows differ from the schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.arguments import one_of
from streampack.documents.blocks import Fields
from streampack.errors import ConfigError, StateError
from streampack.limits.capacity import require_declared, require_whole, row_weights
from streampack.limits.even_rows import EvenRows
from streampack.limits.loss_tokens import LOSS_TOKENS, count_loss_tokens
from streampack.packing.choice import RowChoice
from streampack.packing.plan import Plan
from streampack.packing.request import WindowRequest
from streampack.packing.selection import rows_before

if TYPE_CHECKING:
    from streampack.packing.packer import Packer
    from streampack.stages.recipe import Recipe

_STEPS = 128  # equal steps between the least and the greatest cost of a measured distribution
_BEARABLE = 1152  # mean cost of the rows to choose from, over the schedule's mean, in 1024ths
_LOSS_FILL = 0.75  # share of a row's slots above which it may go when its loss tokens are due
_BITS = 32  # precision of an element of the van der Corput sequence

#: Document field that a row's cost sums, by kind of balance; "" for squared document lengths.
_FIELDS = {"attention": "", "patches": "patches", "loss": LOSS_TOKENS}


@dataclass(frozen=True)
class Balance(RowChoice):
    """Give the batches of all ranks about equal work in each step: a packer's ``choice=``.

    Args:
        kind: "attention" balances attention cost, the squared document lengths; "patches" the image
            patches of documents. "loss" gives all steps about as many loss tokens, with rows and
            batches as similar as documents allow, for conversations and other documents with loss
            masks. The last two require whole documents (overflow "drop" or "error", for "loss" also
            "truncate").
        quantiles: the schedule: quantiles of the row costs, ascending, from the least to the
            greatest at equal steps; by default they are measured on a sample before the run.
        phase: distance of a lane from the schedule, added to its places in the distribution, in
            units of 2 ** -32.
    """

    kind: str = "attention"
    quantiles: tuple[int, ...] | None = None
    phase: int = 0

    orders = True
    measures = "quantiles"
    full_rows: ClassVar[bool] = True  # whether the schedule is of full rows
    whole: ClassVar[tuple[str, ...]] = ("drop", "error")  # overflows that keep a field's values
    revision: ClassVar[int] = 1

    def __new__(cls, kind: str = "attention", *schedule: Any, **named: Any) -> Balance:
        """Make a `LossBalance` if the kind is "loss"."""
        return super().__new__(LossBalance if kind == "loss" else cls)

    def __post_init__(self) -> None:
        one_of("kind", self.kind, [*_FIELDS])

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """The document field that costs are sums of, if any."""
        return tuple(filter(None, [_FIELDS[self.kind]]))

    def require(self, packer: Packer) -> None:
        """Raise `ConfigError` unless documents with a field are whole in the packer's rows."""
        if self.fields:
            require_whole(packer, self.fields[0], self.whole)

    def add(self, recipe: Recipe) -> None:
        """Add the schedule, still to be measured, to the recipe.

        Raises:
            ConfigError: the field is not declared, or all rows cost the same.
        """
        if recipe.attention == "row" and self.kind == "attention":
            raise ConfigError(
                'Balance("attention") requires attention within documents; with attention="row" '
                "all rows cost the same.",
                "Leave out choice=.",
                setting="choice",
            )
        self._add_field(recipe)
        if len(recipe.packer.seq_lens) == 1:  # rows of several lengths have their own schedule
            recipe.choice = self

    def _add_field(self, recipe: Recipe) -> None:
        require_declared(recipe, self.fields, "choice")

    def adapted(self, request: WindowRequest) -> WindowRequest:
        """Plan the full rows of long documents before their tails.

        The last piece of a document longer than a row is planned only after its full rows were
        delivered, since its row would have to wait for theirs. In return the full rows go a round
        early.
        """
        if request.final:
            return request
        lengths, longest = request.lengths, request.seq_len
        return replace(
            request,
            lengths=np.where(lengths > longest, lengths // longest * longest, lengths),
            rounds_left=request.rounds_left - (request.held > longest),
        )

    def chosen(
        self,
        plan: Plan,
        request: WindowRequest,
        rows: NDArray[np.int64],
        must_go: int,
        pool: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Select the rows of the pool with the costs that the schedule requires (step 3)."""
        if not len(rows):
            return rows
        each, costs = request.rows_per_batch, self.costs(plan, request.weights)
        # Rows of equal cost go in order of arrival.
        oldest = np.minimum.reduceat(plan.document, plan.row_offsets[:-1])
        pool = np.sort(pool)
        pool = pool[np.lexsort((oldest[pool], costs[pool]))]
        wanted = self.wanted(request.step, len(rows) // each, each, costs[pool])
        before_offsets, before = rows_before(
            plan.row_offsets, plan.document, plan.start, len(request.held)
        )
        chosen = choose_by_cost(pool, costs, rows[:must_go], wanted, before_offsets, before)
        return chosen if len(chosen) == len(rows) else rows  # some rows wait for each other

    def ordered(
        self, plan: Plan, request: WindowRequest, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Put each row at the position of its cost (step 4)."""
        if not len(rows):
            return rows
        each = request.rows_per_batch
        wanted = self.wanted(request.step, -(-len(rows) // each), each)
        return order_by_cost(rows, self.costs(plan, request.weights), wanted)

    def measured(self, costs: NDArray[np.int64]) -> Balance:
        """Return the schedule of the costs (R,) of a sample of rows, R > 0."""
        places = (np.arange(_STEPS + 1, dtype=np.int64) * (len(costs) - 1) + _STEPS // 2) // _STEPS
        return replace(self, quantiles=tuple(np.sort(costs)[places].tolist()))

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Balance:
        """Rebuild a measured schedule from the output of `describe`.

        Raises:
            StateError: the algorithm's revision differs.
        """
        balance = Balance(description["kind"])
        if description["revision"] != balance.revision:
            raise StateError(
                f'The state was saved with Balance("{balance.kind}") of revision '
                f"{description['revision']}, and this version of streampack has revision "
                f"{balance.revision}, which makes other rows.",
                "Resume with the version of streampack that saved the state, or start a new run.",
                setting="balance",
            )
        return replace(balance, quantiles=tuple(description["quantiles"]))

    def costs(self, plan: Plan, weights: Fields) -> NDArray[np.int64]:
        """Return the cost (R,) int64 of the plan's rows; `weights` holds (N,) values by field."""
        if self.kind == "attention":
            return row_costs(plan)
        return row_weights(plan, weights[_FIELDS[self.kind]])

    def wanted(
        self, step: int, batches: int, rows_per_batch: int, pool: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Return the target costs of the lane's next batches, from batch `step` on.

        They are (batches * rows_per_batch,) int64 in batch order. `pool` holds the costs (C,) of
        the candidate rows, C > 0; if they are far above the schedule, the targets are raised
        (`_shift`).
        """
        assert self.quantiles is not None
        shift = 0 if pool is None else _shift(pool, self.quantiles)
        table = np.array(self.quantiles, dtype=np.int64)
        place = _van_der_corput(step, batches)[:, None] + self.phase & (1 << _BITS) - 1
        stratum = np.arange(rows_per_batch, dtype=np.int64)
        inside = np.where(stratum % 2, (1 << _BITS) - 1 - place, place)
        # A quantile is (stratum + inside / 2 ** 32) / rows_per_batch; every term fits in 62 bits.
        at = ((stratum << _BITS) + inside) // rows_per_batch
        at = np.clip(at + shift, 0, (1 << _BITS) - 1) * (len(table) - 1)
        index, part = at >> _BITS, (at & ((1 << _BITS) - 1)) >> (_BITS // 2)
        following = table[np.minimum(index + 1, len(table) - 1)]
        costs = table[index] + ((following - table[index]) * part >> (_BITS // 2))
        return np.asarray(costs.ravel(), dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        """Return the JSON-compatible identity for the fingerprint."""
        return {
            "kind": self.kind,
            "revision": self.revision,
            "quantiles": None if self.quantiles is None else list(self.quantiles),
        }


class LossBalance(Balance):
    """A schedule of loss tokens, which each lane follows at a phase of its own.

    The phases of L lanes are at equal distances, so the targets of each step's batches are, too.
    Not only full rows may go, because full rows often have the fewest loss tokens: a question
    alone may fill a row.
    """

    full_rows = False
    whole = ("drop", "error", "truncate")
    rows = EvenRows()
    revision = 2

    def _add_field(self, recipe: Recipe) -> None:
        count_loss_tokens(recipe)

    def of_lane(self, lane: int, lanes: int) -> LossBalance:
        """See `RowChoice`."""
        return replace(self, phase=(lane << _BITS) // lanes)

    def adapted(self, request: WindowRequest) -> WindowRequest:
        """Return the request with a lower share of slots above which a row may go."""
        return replace(request, min_fill=min(request.min_fill, _LOSS_FILL))


def _shift(pool: NDArray[np.int64], quantiles: tuple[int, ...]) -> int:
    """Return the amount added to quantiles, in units of 2 ** -32, for a pool of costs (C,), C > 0.

    It is 0 while the pool's mean is at most an eighth above the schedule's, and a quarter of the
    excess beyond that. So a lane with documents longer than the sample's puts them into its
    costlier batches, where the other lanes have long documents too, and does not accumulate so
    many that it runs out of cheap rows.
    """
    usual = max(sum(quantiles) // len(quantiles), 1)
    excess = (int(pool.sum()) << 10) // (len(pool) * usual) - _BEARABLE
    return min(max(excess, 0), 1 << 10) << (_BITS - 12)


def _van_der_corput(first: int, count: int) -> NDArray[np.int64]:
    """Return (count,) int64 in [0, 2 ** 32): first, first + 1, ... with their bits reversed."""
    number = (np.arange(count, dtype=np.int64) + first) & ((1 << _BITS) - 1)
    place = np.zeros(count, dtype=np.int64)
    for bit in range(_BITS):
        place |= (number >> bit & 1) << (_BITS - 1 - bit)
    return place


def row_costs(plan: Plan) -> NDArray[np.int64]:
    """Return the attention cost (R,) int64: a row's squared document lengths, summed, per slot.

    Both factors are below 2 ** 31, so the sum of a row is below 2 ** 62.
    """
    size = plan.stop - plan.start + plan.insert_eos
    sums = np.zeros(plan.num_segments + 1, dtype=np.uint64)  # differences are exact modulo 2 ** 64
    np.cumsum((size * size).astype(np.uint64), out=sums[1:])
    total = sums[plan.row_offsets[1:]] - sums[plan.row_offsets[:-1]]
    return np.asarray(total.astype(np.int64) // plan.seq_len, dtype=np.int64)


def order_by_cost(
    rows: NDArray[np.int64], costs: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return `rows` (E,) int64 in the order of the schedule.

    Args:
        rows: row indices; rows of equal cost keep this order.
        costs: (R,) int64, cost of every row.
        wanted: (E or more,) int64, target cost of each position; entries beyond E are not used.
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
    """Select rows of the pool with costs near the targets: one per target, or as many as can go.

    Args:
        pool: (C,) int64 row indices in ascending cost. With a row it contains the row's
            predecessors.
        costs: (R,) int64, cost of every row.
        forced: (F,) int64 rows of the pool that must go, with all their predecessors; F <= E.
        wanted: (E,) int64, target costs.
        before_offsets, before: predecessors of every row, which go before it or with it (ragged).

    Returns:
        (at most E,) int64 row indices, forced rows first; predecessors are always included.
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
    """Compiled part of `choose_by_cost`: `rows` ascend in cost, `forced` and `wanted` descend."""
    chosen = np.empty(len(wanted), dtype=np.int64)
    taken = np.zeros(len(wanted), dtype=np.bool_)
    goes = np.zeros(len(costs), dtype=np.bool_)
    count = 0
    for row in forced:  # each takes the nearest free target
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
        nearest = np.int64(-1)
        while nearest < 0 and (low >= 0 or high < len(rows)):
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
                nearest = row
        if nearest < 0:
            break
        goes[nearest] = True
        chosen[count] = nearest
        count += 1
    return chosen[:count]
