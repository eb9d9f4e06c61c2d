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

Cost: O(rows log rows + segments). Nothing is thrown away: what does not go is planned again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.packing.packer import Online
from streampack.packing.plan import Plan
from streampack.packing.rng import derive_seed, permutation

__all__ = ["choose_rows"]

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

    Returns:
        (E,) int64 distinct row numbers.
    """
    num_rows = plan.num_rows
    shuffled = permutation(num_rows, derive_seed(seed, 0))
    in_order = np.arange(num_rows, dtype=np.int64)
    if final:
        order = in_order if online.keep_order else shuffled
        if online.join_short:  # the one row that is not full ends the run
            order = order[np.argsort((plan.row_fill() < plan.seq_len)[order], kind="stable")]
        return order
    row_of = np.repeat(np.arange(num_rows, dtype=np.int64), np.diff(plan.row_offsets))
    fill = plan.row_fill()
    urgency = np.zeros(num_rows, dtype=np.int64)
    np.maximum.at(urgency, row_of, overdue[plan.document])
    forced = urgency > 0
    if online.best_first:
        rank = np.where(forced, -1 - urgency, 0)
    else:
        full = (fill >= min_fill * plan.seq_len) | (not carries)
        rank = np.where(forced, -1 - urgency, np.where(full, -1, plan.seq_len - fill))
    ties = in_order if online.keep_order or online.best_first else shuffled
    priority = ties[np.argsort(rank[ties], kind="stable")]
    before_offsets, before = _rows_before(plan, row_of)
    waiting = np.zeros(num_rows, dtype=np.bool_)
    waiting[row_of[plan.stop > held[plan.document]]] = True
    order, length_after = _close(priority, before_offsets, before, waiting)

    staying = fill.sum() - np.cumsum(fill[priority])
    wanted = int(np.count_nonzero(rank < 0))
    enough = staying <= carry * fill.sum()
    wanted = max(wanted, int(np.argmax(enough)) + 1 if enough.any() else num_rows)
    count = _at(length_after, wanted)
    batches = max(count // rows_per_batch, 1)
    if batches * rows_per_batch < _at(length_after, int(np.count_nonzero(forced))):
        batches += 1
    count = min(batches, len(order) // rows_per_batch) * rows_per_batch
    if online.keep_order:
        return np.sort(order[:count])
    return order[:count][permutation(count, derive_seed(seed, 1))]


def _at(length_after: NDArray[np.int64], taken: int) -> int:
    return int(length_after[taken - 1]) if taken else 0


def _rows_before(
    plan: Plan, row_of: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every row, the rows that hold earlier tokens of its documents (ragged: offsets, rows)."""
    pieces = np.bincount(plan.document)
    split = np.flatnonzero(pieces[plan.document] > 1)
    split = split[np.lexsort((plan.start[split], plan.document[split]))]
    follows = np.flatnonzero(plan.document[split[1:]] == plan.document[split[:-1]]) + 1
    later, earlier = row_of[split[follows]], row_of[split[follows - 1]]
    by_row = np.argsort(later, kind="stable")
    offsets = np.zeros(plan.num_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(later, minlength=plan.num_rows), out=offsets[1:])
    return offsets, earlier[by_row]


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
