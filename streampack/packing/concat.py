"""Concat: documents joined in order of arrival and cut every seq_len tokens.

Steps:
  1. The overflow policy ("split" changes nothing: the cut does it).
  2. Cut the joined stream every `atom` tokens.
  3. Shuffle the atoms with the seed; a short last atom stays last.
  4. Merge atoms, or split them, into rows of seq_len.

Cost: O(documents + atoms + rows). Keeps every token and pads only the very last row; cuts documents
wherever an atom or a row happens to end.

Source: "Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
Models", whose finding is that shuffling atoms of exactly one row, the default, is best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.packing.arguments import require_atom, require_seq_len
from streampack.packing.overflow import Overflow, limit_lengths
from streampack.packing.packer import Packer
from streampack.packing.plan import Plan
from streampack.packing.request import Selection, WindowRequest
from streampack.packing.rng import permutation
from streampack.packing.selection import all_rows

__all__ = ["Concat", "cut_joined"]


@dataclass(frozen=True, kw_only=True)
class Concat(Packer):
    """Concatenate and cut.

    Args:
        seq_len: tokens per row.
        overflow: what happens to documents longer than a row.
        atom: tokens that stay together when the stream is shuffled; it divides seq_len or is a
            multiple of it. None is seq_len.
    """

    seq_len: int
    overflow: Overflow = "split"
    atom: int | None = None

    revision: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "seq_len", require_seq_len(self.seq_len, self.overflow))
        if self.atom is not None:
            object.__setattr__(self, "atom", require_atom(self.atom, self.seq_len))
        object.__setattr__(self, "seq_lens", (self.seq_len,))
        object.__setattr__(self, "keeps_order", self._atom >= self.seq_len)

    @property
    def _atom(self) -> int:
        return self.seq_len if self.atom is None else self.atom

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Join, cut and shuffle; the seed orders the atoms."""
        kept, dropped = limit_lengths(lengths, self.seq_len, self.overflow)
        order = permutation(int(kept.sum()) // self._atom, seed)
        row_offsets, document, start, stop = cut_joined(kept, self.seq_len, self._atom, order)
        return Plan.plain(row_offsets, self.seq_len, document, start, stop, dropped)

    def plan_window(self, request: WindowRequest) -> Selection:
        """Plan the oldest tokens that make whole batches, and let all of their rows go.

        Atoms that follow each other share a document, so rows of shuffled atoms would wait for
        one another in circles if some of them stayed.
        """
        lengths = request.lengths
        if not request.final:
            held = np.minimum(lengths, request.held)
            most = int(held.sum()) // request.batch_tokens * request.batch_tokens
            before = np.cumsum(held) - held
            lengths = np.minimum(np.maximum(most - before, 0), held)
        plan = self.plan(lengths, final=request.final, seed=request.seed)
        return all_rows(plan, request)

    def describe(self) -> dict[str, Any]:
        """Class, parameters and algorithm revision."""
        return {
            "kind": "Concat",
            "revision": self.revision,
            "seq_len": self.seq_len,
            "overflow": self.overflow,
            "atom": self._atom,
        }


@kernel
def cut_joined(
    lengths: NDArray[np.int64], seq_len: int, atom: int, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the joined stream with its atoms in another order.

    Args:
        lengths: (N,) int64, tokens of each document.
        seq_len: tokens per row; atom: tokens per atom, a divisor or a multiple of it.
        order: (A,) int64, the whole atoms in the order in which they go; a short one follows them.

    Returns:
        Row offsets (R + 1,), and per segment its document, start and stop, all int64. Segments
        that follow each other in a row and in their document are one.
    """
    ends = np.cumsum(lengths)
    total = ends[-1] if len(ends) else 0
    rows = (total + seq_len - 1) // seq_len
    piece = min(atom, seq_len)
    pieces = (total + piece - 1) // piece
    per_atom = atom // piece
    row_offsets = np.zeros(rows + 1, dtype=np.int64)
    bound = len(lengths) + pieces  # every cut adds at most one segment
    document = np.empty(bound, dtype=np.int64)
    start = np.empty(bound, dtype=np.int64)
    stop = np.empty(bound, dtype=np.int64)
    k = 0
    for p in range(pieces):
        number = p // per_atom
        low = (order[number] if number < len(order) else number) * atom + p % per_atom * piece
        high = min(low + piece, total)
        row = p * piece // seq_len
        first = p * piece % seq_len == 0
        i = np.searchsorted(ends, low, side="right")
        while low < high:
            begin = ends[i] - lengths[i]
            end = min(ends[i], high)
            if end > low:
                if not first and document[k - 1] == i and stop[k - 1] == low - begin:
                    stop[k - 1] = end - begin
                else:
                    document[k] = i
                    start[k] = low - begin
                    stop[k] = end - begin
                    k += 1
                first = False
            low = end
            i += 1
        row_offsets[row + 1] = k
    return row_offsets, document[:k], start[:k], stop[:k]
