"""Batches of one key each: all rows of a batch have documents with one value of a field.

It is for steps that need one key, such as the training of one of several LoRA adapters.

Steps:
  1. The window is planned like in `limits.separation`, each key alone.
  2. The rows of each key are divided into batches: rows that must go first, the oldest before the
     others, then the fullest. Only the last batch of a key may have too few rows.
  3. Batches are selected like rows (`fullest_rows`): a batch counts as a row of all its slots, and
     has to go if one of its rows has to. A batch that is not full waits, at most
     `WindowConfig.max_carries` rounds; then it goes, and its missing rows are padding.
  4. While the window grows, only full batches go.

Cost: one sort of the rows beyond `limits.separation`. No token is dropped.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Fields, offsets_of, ranges_of
from streampack.packing.plan import Plan
from streampack.packing.request import Selection, WindowRequest
from streampack.packing.row_limits import RowLimits
from streampack.packing.selection import fullest_rows


def batches_of_a_key(
    plan: Plan, request: WindowRequest, loads: NDArray[np.int64], field: str
) -> Selection:
    """Run steps 2 to 4.

    Args:
        plan, request: see `RowLimits.selected`.
        loads: (R,) int64, load of each row in slots; (0,) stands for the tokens of the rows.
        field: document field with the keys.
    """
    fill = loads if len(loads) else plan.row_fill()
    rows, batches = _divided(plan, request, fill, field)
    sizes = np.diff(plan.row_offsets)[rows]
    segments = ranges_of(plan.row_offsets[rows], sizes)
    whole = Plan.plain(
        offsets_of(sizes)[batches], request.batch_tokens, plan.document[segments],
        plan.start[segments], plan.stop[segments], plan.dropped,
    )  # fmt: skip
    loads = np.diff(offsets_of(fill[rows])[batches])
    asked = replace(request, seq_len=request.batch_tokens, limits=_Loads(loads))
    if request.growing and not request.final:
        full = loads >= request.min_fill * request.batch_tokens
        if not full.any():
            return Selection(plan, rows[:0], batches[:1])
        asked = replace(asked, carry=1.0, rounds_left=np.maximum(request.rounds_left, 1))
    chosen = fullest_rows(whole, asked).rows
    many = np.diff(batches)[chosen]
    return Selection(plan, rows[ranges_of(batches[chosen], many)], offsets_of(many))


def _divided(
    plan: Plan, request: WindowRequest, fill: NDArray[np.int64], field: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Run step 2, without rows that need tokens which the window does not hold.

    Args:
        plan, request: see `RowLimits.selected`.
        fill: (R,) int64, load of each row in slots.
        field: document field with the keys.

    Returns:
        The rows (E,) by batch, and offsets (B + 1,) of the batches into them.
    """
    first = plan.row_offsets[:-1]
    if not len(first):
        return first, np.zeros(1, dtype=np.int64)
    key = np.unique(request.weights[field], return_inverse=True)[1].reshape(-1)
    key = key[plan.document[first]]
    left = np.minimum.reduceat(request.rounds_left[plan.document], first)
    waits = np.logical_or.reduceat(plan.stop > request.held[plan.document], first)
    rows = np.lexsort((-fill, np.minimum(left, 1), key))
    rows = rows[~waits[rows]]
    begins = np.flatnonzero(np.append(True, np.diff(key[rows]) != 0)[: len(rows)])
    many = np.diff(np.append(begins, len(rows)))
    each = request.rows_per_batch
    batches = np.concatenate([
        begin + np.arange(0, rows_of_key, each)
        for begin, rows_of_key in zip(begins, many, strict=True)
    ] or [begins])  # fmt: skip
    return rows, np.append(batches, len(rows)).astype(np.int64)


class _Loads(RowLimits):
    """Loads of batches that count as rows.

    Args:
        loads: (B,) int64, load of each batch in slots.
    """

    def __init__(self, loads: NDArray[np.int64]) -> None:
        self._loads = loads

    def loads(self, plan: Plan, weights: Fields) -> NDArray[np.int64]:
        """See `RowLimits`."""
        return self._loads
