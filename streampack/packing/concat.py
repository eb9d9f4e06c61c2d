"""Concat: documents joined in order of arrival and cut every seq_len tokens.

Steps:
  1. The overflow policy ("split" changes nothing: the cut does it).
  2. Cut the joined stream every seq_len tokens.
  3. Shuffle the rows with the seed; a short last row stays last.

Cost: O(documents + rows). Keeps every token and pads nothing but the very last row; cuts
documents wherever a row happens to end.

Source: "Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
Models", whose finding is that shuffling atoms of exactly one row, as here, is best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.packing.packer import Overflow, limit_lengths, require_seq_len
from streampack.packing.plan import Plan
from streampack.packing.rng import permutation

__all__ = ["Concat"]


@dataclass(frozen=True, kw_only=True)
class Concat:
    """Concatenate and cut.

    Args:
        seq_len: tokens per row.
        overflow: what happens to documents longer than a row.
    """

    seq_len: int
    overflow: Overflow = "split"

    carries: ClassVar[bool] = True
    inserts_eos: ClassVar[bool] = False
    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_seq_len(self.seq_len, self.overflow)

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """``(seq_len,)``."""
        return (self.seq_len,)

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Join and cut; the seed orders the rows."""
        kept, dropped = limit_lengths(lengths, self.seq_len, self.overflow)
        total = int(kept.sum())
        order = permutation(total // self.seq_len, seed)
        row_offsets, document, start, stop = _cut_joined(kept, self.seq_len, order)
        segments = len(document)
        return Plan(
            row_offsets=row_offsets,
            seq_len=np.full(len(row_offsets) - 1, self.seq_len, dtype=np.int32),
            document=document,
            start=start,
            stop=stop,
            overlap=np.zeros(segments, dtype=np.int64),
            insert_eos=np.zeros(segments, dtype=np.bool_),
            pad_after=np.zeros(segments, dtype=np.int64),
            dropped=dropped,
        )

    def describe(self) -> dict[str, Any]:
        """Class, parameters and algorithm revision."""
        return {
            "kind": "Concat",
            "revision": self.revision,
            "seq_len": self.seq_len,
            "overflow": self.overflow,
        }


@kernel
def _cut_joined(
    lengths: NDArray[np.int64], seq_len: int, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Segments of the joined stream's rows, full rows in `order`, a short one behind them."""
    ends = np.cumsum(lengths)
    total = ends[-1] if len(ends) else 0
    rows = (total + seq_len - 1) // seq_len
    row_offsets = np.zeros(rows + 1, dtype=np.int64)
    bound = len(lengths) + rows  # every cut adds at most one segment
    document = np.empty(bound, dtype=np.int64)
    start = np.empty(bound, dtype=np.int64)
    stop = np.empty(bound, dtype=np.int64)
    k = 0
    for r in range(rows):
        low = (order[r] if r < len(order) else len(order)) * seq_len
        high = min(low + seq_len, total)
        i = np.searchsorted(ends, low, side="right")
        while low < high:
            begin = ends[i] - lengths[i]
            end = min(ends[i], high)
            if end > low:
                document[k] = i
                start[k] = low - begin
                stop[k] = end - begin
                k += 1
            low = end
            i += 1
        row_offsets[r + 1] = k
    return row_offsets, document[:k], start[:k], stop[:k]
