"""Selection of the rows of a window's plan that are delivered this round, and their order.

Most packers use `fullest_rows`:
  1. Rows that must go (they hold a document that may not wait any longer) come first, the oldest
     before the others; then rows filled to at least `min_fill`; then the rest, fullest first. Ties
     are in seeded random order. With limits beside tokens the fill of a row is `RowLimits.loads`.
  2. Rows of the rest go until at most the share `carry` of the tokens stays.
  3. A row goes only after the rows that hold earlier tokens of its documents, so that only the tail
     of a document ever stays.
  4. Only whole batches go. If that would hold back a row that must go, the next best rows fill
     one batch more.
  5. The selected rows are shuffled with the seed, so that batches are not sorted by fill.

A request's `choice` (`RowChoice`) may select other full rows in step 2, let full rows wait, and
order the selected rows otherwise than step 5.

For plans with an order of their own there are `first_rows` (rows get worse from first to last),
`rows_in_order` (rows are shuffled already) and `all_rows`. A choice orders their rows too.

Cost: O(rows log rows + segments). Rows that do not go are planned again in the
next round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.packing.plan import Plan, RowColumns, check_rows, sound_fill
from streampack.packing.request import Selection, WindowRequest
from streampack.packing.rng import derive_seed, permutation


def all_rows(plan: Plan, request: WindowRequest) -> Selection:
    """Select all rows of the plan, in its order."""
    return _in_turn(plan, np.arange(plan.num_rows, dtype=np.int64), request)


def fullest_rows(plan: Plan, request: WindowRequest, *, min_fill: float | None = None) -> Selection:
    """Select the rows that must go, the full ones, and the others beyond the share that may stay.

    Args:
        plan: plan over the request's N documents.
        request: this round's request. If it is the final one, all rows go, in seeded random order.
        min_fill: share of a row's slots above which it counts as full, by default the window's. Use
            0, which makes every row full, for packers that gain nothing by waiting.
    """
    seed = derive_seed(request.seed, 1)
    shuffled = permutation(plan.num_rows, derive_seed(seed, 0))
    if request.final:
        return _in_turn(plan, shuffled, request)
    least = request.min_fill if min_fill is None else min_fill
    waits = request.choice.orders
    ranked = _ranked(plan, request, shuffled, min_fill=least, full_rows_wait=waits)
    rows = request.choice.chosen(plan, request, *ranked)
    return _in_turn(plan, _shuffled(rows, seed), request)


def first_rows(
    plan: Plan, request: WindowRequest, *, worse: NDArray[np.int64] | None = None
) -> Selection:
    """Select the rows that must go, then the first ones of the plan; no row counts as full.

    It is for plans with rows that get worse from first to last, and otherwise like `fullest_rows`.

    Args:
        plan: see `fullest_rows`.
        request: see `fullest_rows`.
        worse: (R,) int64, a penalty for each row: the smallest go first, ties in the plan's order.
            By default the plan's order alone decides.
    """
    seed = derive_seed(request.seed, 1)
    if request.final:
        return _in_turn(plan, permutation(plan.num_rows, derive_seed(seed, 0)), request)
    in_order = np.arange(plan.num_rows, dtype=np.int64)
    if worse is not None:
        in_order = np.argsort(worse, kind="stable")
    rows, _, _ = _ranked(plan, request, in_order, min_fill=1.0, by_fill=False)
    return _in_turn(plan, _shuffled(rows, seed), request)


def rows_in_order(plan: Plan, request: WindowRequest) -> Selection:
    """Select the rows of `fullest_rows` with ties in the plan's order, and keep that order.

    It is for plans that are shuffled already.
    """
    if request.final:
        return all_rows(plan, request)
    in_order = np.arange(plan.num_rows, dtype=np.int64)
    rows, _, _ = _ranked(plan, request, in_order, min_fill=request.min_fill)
    if request.choice.orders:
        return _in_turn(plan, _shuffled(rows, derive_seed(request.seed, 1)), request)
    return _in_turn(plan, np.sort(rows), request)


def _shuffled(rows: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    return rows[permutation(len(rows), derive_seed(seed, 1))]


def _in_turn(plan: Plan, rows: NDArray[np.int64], request: WindowRequest) -> Selection:
    """Divide `rows` (E,) into batches, in the order of the request's choice."""
    rows = request.choice.ordered(plan, request, rows)
    return Selection.in_batches(plan, rows, request.rows_per_batch)


def _ranked(
    plan: Plan,
    request: WindowRequest,
    ties: NDArray[np.int64],
    *,
    min_fill: float,
    by_fill: bool = True,
    full_rows_wait: bool = False,
) -> tuple[NDArray[np.int64], int, NDArray[np.int64]]:
    """Run steps 1 to 4.

    Args:
        ties: (R,) int64, all rows, in the order that breaks ties.
        min_fill: see `fullest_rows`.
        by_fill: False to treat all rows as equally full, and no row as full.
        full_rows_wait: True if a full row may wait for a later round.

    Returns:
        The selected rows (E,), the number of them, from the first on, that must go, and the
        candidates of a choice: the selected rows and all full ones.

    Raises:
        PlanError: the plan's arrays do not fit together (`check_rows`).
    """
    order = np.empty(plan.num_rows, dtype=np.int64)
    rule = _Rule(
        request.rows_per_batch, float(min_fill), float(request.carry), by_fill, full_rows_wait
    )
    loads = request.limits.loads(plan, request.weights)
    count, must_go, full = _best_rows(
        plan.columns, request.rounds_left, request.held, ties, rule, loads, order
    )
    if count < 0:
        check_rows(plan, np.maximum(request.lengths, request.remaining))
    return order[:count], must_go, order[: max(count, full)]


class _Rule(NamedTuple):
    """Parameters of the number of selected rows; see `_ranked`."""

    rows_per_batch: int
    min_fill: float
    carry: float
    by_fill: bool
    full_rows_wait: bool


@kernel
def _best_rows(
    plan: RowColumns,
    rounds_left: NDArray[np.int64],
    held: NDArray[np.int64],
    ties: NDArray[np.int64],
    rule: _Rule,
    loads: NDArray[np.int64],
    out: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Run steps 1 to 4, the most urgent rows first.

    It is compiled as a whole, because a window's plan is small and the same steps as numpy calls
    take longer than planning.

    Args:
        plan: all rows; rounds_left, held: columns of its documents; ties: see `_ranked`.
        rule: parameters of the number of selected rows.
        loads: (R,) int64, load of each row in slots, by which it counts as full; (0,) to use its
            tokens.
        out: (R,) int64 output, rows in order, without rows that cannot go.

    Returns:
        The number of selected rows, the number of them that must go, and the number of rows up to
        the last full one. The first is -1 if the plan's arrays do not fit together.
    """
    row_offsets, seq_len, document = plan.row_offsets, plan.seq_len, plan.document
    num_rows = len(seq_len)
    fill = np.empty(num_rows, dtype=np.int64)
    if not sound_fill(plan, len(held), fill):
        return -1, 0, 0
    if len(loads):
        fill = loads
    rank = np.zeros(num_rows, dtype=np.int64)
    waiting = np.zeros(num_rows, dtype=np.bool_)
    forced = 0
    full = 0
    for r in range(num_rows):
        urgency = np.int64(0)
        for s in range(row_offsets[r], row_offsets[r + 1]):
            urgency = max(urgency, 1 - rounds_left[document[s]])
            if plan.stop[s] > held[document[s]]:
                waiting[r] = True
        if urgency > 0:
            forced += 1
            rank[r] = -1 - urgency
        elif rule.by_fill:
            is_full = fill[r] >= rule.min_fill * seq_len[r]
            rank[r] = -1 if is_full else seq_len[r] - fill[r]
        if rank[r] < 0:
            full += 1
    priority = ties[np.argsort(rank[ties], kind="mergesort")]
    before_offsets, before = rows_before(row_offsets, document, plan.start, len(held))
    order, length_after = _close(priority, before_offsets, before, waiting)
    wanted = max(forced if rule.full_rows_wait else full, _enough(fill[priority], rule.carry))
    must_go = _at(length_after, forced)
    each = rule.rows_per_batch
    batches = max(_at(length_after, wanted) // each, 1)
    if batches * each < must_go:
        batches += 1
    count = min(batches, len(order) // each) * each
    for row in range(len(order)):  # assigning slices would take seconds to compile
        out[row] = order[row]
    return count, min(must_go, count), _at(length_after, full)


@kernel
def _enough(fill: NDArray[np.int64], carry: float) -> int:
    """Return the number of leading rows that leave at most the share `carry` of the tokens."""
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
def rows_before(
    row_offsets: NDArray[np.int64],
    document: NDArray[np.int64],
    start: NDArray[np.int64],
    num_documents: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return every row's predecessors: rows with earlier tokens of its documents (ragged)."""
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

    Waiting rows are left out, together with rows that depend on them. Returns the order and, for
    each step of `priority`, the number of rows placed so far.
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
                # State 1 means that the needed row is this row, or that the two depend on each
                # other through different documents. Then both go together.
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
