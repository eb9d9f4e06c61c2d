"""Emission: which rows of a plan over the window go out now, in which order.

Steps:
  1. Rows that must go (they hold a document of the age limit) come first, the oldest ahead, then
     rows filled to at least `min_fill`, then the rest, fullest first; ties in seeded random order.
  2. From the rest, as many go as it takes to leave at most the share `carry` of the tokens.
  3. A row goes only behind the rows that hold earlier tokens of its documents, so that what
     stays of a document is always its tail.
  4. Cut to whole batches. Rows that must go are cut last: if cutting would hold one back, the
     next best rows fill one more batch instead.
  5. Shuffle what goes with the seed, so that batches are not sorted by how full rows are.

What a packer says of its plans (`Online`) changes two steps: where its rows are shuffled already,
they are taken and go in the plan's order; where the first rows are the best, none counts as full.

With a `Balance`, steps 2 and 5 are others: only as many rows go as must, those among the full ones
whose costs the schedule wants, each at its place in it. Where rows do not wait (`Online`), those
that go still take their places by it.

Cost: O(rows log rows + segments). Nothing is thrown away: what does not go is planned again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.packing.packer import Online
from streampack.packing.plan import Plan
from streampack.packing.rng import derive_seed, permutation
from streampack.window.balancing import Balance, choose_by_cost, order_by_cost, row_costs

__all__ = ["choose_rows", "chooses_by_cost", "in_turn"]

_DEFAULT = Online()


def choose_rows(
    plan: Plan,
    *,
    overdue: NDArray[np.int64],
    held: NDArray[np.int64],
    rows_per_batch: int,
    min_fill: float,
    carry: float,
    carries: bool,
    final: bool,
    seed: int,
    online: Online = _DEFAULT,
    balance: Balance | None = None,
    step: int = 0,
) -> NDArray[np.int64]:
    """Rows to emit, in order.

    Args:
        plan: over N documents.
        overdue: (N,) int64, above 0 for documents that may not stay; the larger, the sooner.
        held: (N,) int64, tokens of each document that the window holds; a row that needs more
            cannot go yet.
        rows_per_batch: the result's length is a multiple of it unless `final`.
        min_fill: share of a row's slots above which it counts as full.
        carry: share of the plan's tokens that may stay.
        carries: False for packers whose rows never get better by waiting.
        final: emit everything.
        seed: of ties and of the order.
        online: what the packer says of its plans.
        balance: the schedule of costs; None goes by no costs.
        step: batches the lane has given before.

    Returns:
        (E,) int64 distinct row numbers.
    """
    num_rows = plan.num_rows
    shuffled = permutation(num_rows, derive_seed(seed, 0))
    in_order = np.arange(num_rows, dtype=np.int64)
    if final:
        order = in_order if online.keep_order else shuffled
        order = in_turn(order, plan, balance, step, rows_per_batch)
        if online.join_short:  # the one row that is not full ends the run
            order = order[np.argsort((plan.row_fill() < plan.seq_len)[order], kind="stable")]
        return order
    ties = in_order if online.keep_order or online.best_first else shuffled
    by_cost = balance is not None and chooses_by_cost(online, carries)
    order = np.empty(num_rows, dtype=np.int64)
    count, must_go, full = _best_rows(
        plan.row_offsets, plan.seq_len, plan.document, plan.start, plan.stop, plan.insert_eos,
        plan.pad_after, overdue, held, ties, rows_per_batch, float(min_fill), float(carry),
        carries, online.best_first, by_cost, order,
    )  # fmt: skip
    rows = order[:count]
    if balance is None:
        if online.keep_order:
            return np.sort(rows)
        return rows[permutation(count, derive_seed(seed, 1))]
    if by_cost and count:
        costs = row_costs(plan)
        # Of equal costs, what came first goes first.
        oldest = np.minimum.reduceat(plan.document, plan.row_offsets[:-1])
        pool = np.sort(order[: max(count, full)])
        pool = pool[np.lexsort((oldest[pool], costs[pool]))]
        wanted = balance.wanted(step, count // rows_per_batch, rows_per_batch, costs[pool])
        before_offsets, before = _rows_before(
            plan.row_offsets, plan.document, plan.start, len(held)
        )
        chosen = choose_by_cost(pool, costs, rows[:must_go], wanted, before_offsets, before)
        rows = chosen if len(chosen) == count else rows  # rows that each wait for the other
    rows = rows[permutation(len(rows), derive_seed(seed, 1))]
    return in_turn(rows, plan, balance, step, rows_per_batch)


def chooses_by_cost(online: Online, carries: bool) -> bool:
    """True if rows of a packer's plans can wait in the window for their turn."""
    return carries and not (online.best_first or online.keep_order)


def in_turn(
    rows: NDArray[np.int64], plan: Plan, balance: Balance | None, step: int, rows_per_batch: int
) -> NDArray[np.int64]:
    """(E,) int64: `rows` (E,) in their turn from batch `step` on; as they are if None."""
    if balance is None or not len(rows):
        return rows
    wanted = balance.wanted(step, -(-len(rows) // rows_per_batch), rows_per_batch)
    return order_by_cost(rows, row_costs(plan), wanted)


@kernel
def _best_rows(
    row_offsets: NDArray[np.int64],
    seq_len: NDArray[np.int32],
    document: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    insert_eos: NDArray[np.bool_],
    pad_after: NDArray[np.int64],
    overdue: NDArray[np.int64],
    held: NDArray[np.int64],
    ties: NDArray[np.int64],
    rows_per_batch: int,
    min_fill: float,
    carry: float,
    carries: bool,
    best_first: bool,
    by_cost: bool,
    out: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Steps 1 to 4, the most pressing rows first.

    Compiled as a whole: a window's plan is small, and as many numpy calls take longer than it did.
    With `by_cost`, full rows do not go for being full.

    Args:
        out: (R,) int64, filled with the rows in order, but for those that cannot go.

    Returns:
        How many of them, from the first on, go, how many of these must, and with how many all
        full ones have gone.
    """
    num_rows = len(seq_len)
    fill = np.zeros(num_rows, dtype=np.int64)
    rank = np.zeros(num_rows, dtype=np.int64)
    waiting = np.zeros(num_rows, dtype=np.bool_)
    forced = 0
    full = 0
    for r in range(num_rows):
        urgency = np.int64(0)
        for s in range(row_offsets[r], row_offsets[r + 1]):
            fill[r] += stop[s] - start[s] + insert_eos[s] + pad_after[s]
            urgency = max(urgency, overdue[document[s]])
            if stop[s] > held[document[s]]:
                waiting[r] = True
        if urgency > 0:
            forced += 1
            rank[r] = -1 - urgency
        elif not best_first:
            is_full = fill[r] >= min_fill * seq_len[r] or not carries
            rank[r] = -1 if is_full else seq_len[r] - fill[r]
        if rank[r] < 0:
            full += 1
    priority = ties[np.argsort(rank[ties], kind="mergesort")]
    before_offsets, before = _rows_before(row_offsets, document, start, len(held))
    order, length_after = _close(priority, before_offsets, before, waiting)
    wanted = max(forced if by_cost else full, _enough(fill[priority], carry))
    must_go = _at(length_after, forced)
    batches = max(_at(length_after, wanted) // rows_per_batch, 1)
    if batches * rows_per_batch < must_go:
        batches += 1
    count = min(batches, len(order) // rows_per_batch) * rows_per_batch
    out[: len(order)] = order
    return count, min(must_go, count), _at(length_after, full)


@kernel
def _enough(fill: NDArray[np.int64], carry: float) -> int:
    """How many rows, from the first on, leave at most the share `carry` of the tokens behind."""
    staying = fill.sum()
    may_stay = carry * staying
    for row in range(len(fill)):
        staying -= fill[row]
        if staying <= may_stay:
            return row + 1
    return 0


@kernel
def _at(length_after: NDArray[np.int64], taken: int) -> int:
    return np.int64(length_after[taken - 1]) if taken else np.int64(0)  # type: ignore[return-value]


@kernel
def _rows_before(
    row_offsets: NDArray[np.int64],
    document: NDArray[np.int64],
    start: NDArray[np.int64],
    num_documents: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every row, the rows that hold earlier tokens of its documents (ragged: offsets, rows)."""
    pieces = np.zeros(num_documents, dtype=np.int64)
    for d in document:
        pieces[d] += 1
    num_rows = len(row_offsets) - 1
    split = np.empty(len(document), dtype=np.int64)
    row_of = np.empty(len(document), dtype=np.int64)
    count = 0
    for r in range(num_rows):
        for s in range(row_offsets[r], row_offsets[r + 1]):
            row_of[s] = r
            if pieces[document[s]] > 1:
                split[count] = s
                count += 1
    split = split[:count]
    split = split[np.argsort(start[split], kind="mergesort")]
    split = split[np.argsort(document[split], kind="mergesort")]
    offsets = np.zeros(num_rows + 1, dtype=np.int64)
    for i in range(1, count):
        if document[split[i]] == document[split[i - 1]]:
            offsets[row_of[split[i]] + 1] += 1
    for r in range(num_rows):
        offsets[r + 1] += offsets[r]
    place = offsets[:-1].copy()
    before = np.empty(offsets[num_rows], dtype=np.int64)
    for i in range(1, count):
        if document[split[i]] == document[split[i - 1]]:
            row = row_of[split[i]]
            before[place[row]] = row_of[split[i - 1]]
            place[row] += 1
    return offsets, before


@kernel
def _close(
    priority: NDArray[np.int64],
    before_offsets: NDArray[np.int64],
    before: NDArray[np.int64],
    waiting: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Order rows so that every prefix is closed under `before`, following `priority`.

    Rows that wait, and rows behind them, are left out. Returns the order and, for each step of
    `priority`, how many rows it has led to so far.
    """
    num_rows = len(priority)
    state = np.zeros(num_rows, dtype=np.int8)  # 0 new, 1 on the stack, 2 placed, 3 out
    order = np.empty(num_rows, dtype=np.int64)
    length_after = np.empty(num_rows, dtype=np.int64)
    stack = np.empty(num_rows + 1, dtype=np.int64)
    edge = before_offsets[:-1].copy()
    placed = 0
    for step in range(num_rows):
        top = 0
        stack[0] = priority[step]
        if state[priority[step]] == 0:
            state[priority[step]] = 1
            top = 1
        while top > 0:
            row = stack[top - 1]
            if waiting[row]:
                state[row] = 3
                top -= 1
                continue
            descend = False
            while edge[row] < before_offsets[row + 1]:
                needed = before[edge[row]]
                if state[needed] == 0:
                    state[needed] = 1
                    stack[top] = needed
                    top += 1
                    descend = True
                    break
                if state[needed] == 3:
                    waiting[row] = True
                # State 1 can only be the row itself or a cycle; packers cannot make a cycle
                # out of different documents without each row waiting for the other, so both
                # go together: neither is held back by the other.
                edge[row] += 1
            if descend:
                continue
            if waiting[row]:
                state[row] = 3
            else:
                state[row] = 2
                order[placed] = row
                placed += 1
            top -= 1
        length_after[step] = placed
    return order[:placed], length_after
