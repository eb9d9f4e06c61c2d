"""Rows with about equal numbers of loss tokens, for `Balance("loss")`.

Loss tokens of batches differ within a step and between steps, and a schedule can only move the
difference from one to the other. Rows that are more alike lower both. After a window is planned by
length alone, documents of about equal length are exchanged between rows:

  1. Documents are sorted by length.
  2. Each is compared with its `_REACH` neighbours on either side. It is exchanged with the one that
     lowers the sum of the rows' squared loss tokens most, if any does and both rows can hold them.
  3. A full row stays full, and of two others the fuller never loses tokens, so that as many rows
     are full as before.
  4. This is repeated until nothing changes, at most `_PASSES` times.

Cost: at most ``2 * _REACH * _PASSES`` comparisons per document, compiled. No token is dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents.blocks import Fields, offsets_of
from streampack.limits.loss_tokens import LOSS_TOKENS
from streampack.packing.plan import Plan
from streampack.packing.row_limits import RowLimits

if TYPE_CHECKING:
    from streampack.packing.fit_decreasing import Decreasing

_SLACK = 10  # a row counts as full with seq_len - (seq_len >> _SLACK) tokens
_REACH = 32  # documents compared on either side in the order of lengths
_PASSES = 4


class EvenRows(RowLimits):
    """The limit of a row by tokens alone, with plans of rows of about equal loss tokens."""

    def plan(self, packer: Decreasing, lengths: NDArray[np.int64], weights: Fields) -> Plan:
        """Plan documents of these lengths and weights (N,) by the steps of the module."""
        plan = packer.plan_tokens(lengths)
        if LOSS_TOKENS not in weights or not plan.num_rows:
            return plan
        size = plan.stop - plan.start + plan.pad_after
        loss = np.asarray(weights[LOSS_TOKENS], dtype=np.int64)[plan.document]
        row = np.repeat(np.arange(plan.num_rows, dtype=np.int64), np.diff(plan.row_offsets))
        exchange(row, size, loss, np.argsort(size, kind="stable"), packer.seq_len, plan.num_rows)
        order = np.lexsort((-size, row))
        return replace(
            plan,
            row_offsets=offsets_of(np.bincount(row, minlength=plan.num_rows)),
            document=plan.document[order],
            start=plan.start[order],
            stop=plan.stop[order],
            pad_after=plan.pad_after[order],
        )


@kernel
def exchange(
    row: NDArray[np.int64],
    size: NDArray[np.int64],
    loss: NDArray[np.int64],
    order: NDArray[np.int64],
    seq_len: int,
    num_rows: int,
) -> None:
    """Exchange documents between rows, so that the rows' loss tokens differ less.

    Args:
        row: (N,) row of each document, which changes.
        size, loss: (N,) slots and loss tokens of each.
        order: (N,) documents by size.
        seq_len: slots of a row.
        num_rows: number of rows.
    """
    fill = np.zeros(num_rows, dtype=np.int64)
    sums = np.zeros(num_rows, dtype=np.int64)
    for i in range(len(row)):
        fill[row[i]] += size[i]
        sums[row[i]] += loss[i]
    full = seq_len - (seq_len >> _SLACK)
    for _ in range(_PASSES):
        changed = False
        for k in range(len(order)):
            i = order[k]
            a = row[i]
            best, least = -1, 0
            for m in range(max(k - _REACH, 0), min(k + _REACH + 1, len(order))):
                j = order[m]
                b = row[j]
                more, gain = size[j] - size[i], loss[j] - loss[i]
                # Half the change of the sum of squares, if both documents change their rows.
                change = gain * (gain + sums[a] - sums[b])
                if a == b or change >= least:
                    continue
                if fill[a] + more > seq_len or fill[b] - more > seq_len:
                    continue
                emptied = fill[b] - more if more > 0 else fill[a] + more
                if more * (more + fill[a] - fill[b]) < 0 and emptied < full:
                    continue
                best, least = j, change
            if best >= 0:
                b = row[best]
                more, gain = size[best] - size[i], loss[best] - loss[i]
                fill[a] += more
                fill[b] -= more
                sums[a] += gain
                sums[b] -= gain
                row[i], row[best] = b, a
                changed = True
        if not changed:
            break
