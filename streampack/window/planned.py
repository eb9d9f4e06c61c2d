"""PlannedWindow: a plan over the window and the rows of it that go; and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents import offsets_of
from streampack.packing.packer import Packer
from streampack.packing.plan import Plan

__all__ = ["PlannedWindow", "admitted", "needed_tokens", "not_full", "oldest_tokens", "what_stays"]


@dataclass(frozen=True, eq=False)
class PlannedWindow:
    """One round's plan and the rows of it that go.

    Attributes:
        plan: over the window's entries; segment coordinates count from an entry's `start`.
        rows: (E,) int64, rows that go, in order; whole batches, but for the last batch of a run.
        batches: (B + 1,) int64, where each batch begins in `rows`.
        position: (N + 1,) int64, where each entry's held tokens lie in the window's array.
        lengths: (N,) int64, what is planned now or later: 0 for a document that overflow drops,
            and not all of one that is held in part.
    """

    plan: Plan
    rows: NDArray[np.int64]
    batches: NDArray[np.int64]
    position: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @cached_property
    def dropped(self) -> NDArray[np.int64]:
        """(N,) int64: tokens of each document that are lost if these rows go."""
        return self.plan.dropped_by(self.rows)


@kernel
def what_stays(
    rows: NDArray[np.int64],
    row_offsets: NDArray[np.int64],
    document: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    overlap: NDArray[np.int64],
    dropped: NDArray[np.int64],
    lengths: NDArray[np.int64],
    was_repeated: NDArray[np.int64],
    continued: bool,
    kept: NDArray[np.int64],
    moved: NDArray[np.int64],
    repeated: NDArray[np.int64],
) -> tuple[int, bool]:
    """What the window keeps once these rows are gone.

    Args:
        rows: that go; row_offsets, document, start, stop, overlap: of the plan.
        dropped, lengths: (N,) int64, of `PlannedWindow`.
        was_repeated: (N,) int64, `Entries.repeated` before.
        continued: the last document goes on behind what is held.
        kept, moved, repeated: (N,) int64, filled for the K documents that stay: which they are,
            how many of their held tokens go, and how many that stay were delivered already.

    Returns:
        K, and whether what stays of each is its tail.
    """
    count = len(lengths)
    furthest = np.zeros(count, dtype=np.int64)
    placed = np.zeros(count, dtype=np.int64)
    for row in rows:
        for s in range(row_offsets[row], row_offsets[row + 1]):
            furthest[document[s]] = max(furthest[document[s]], stop[s])
            placed[document[s]] += stop[s] - start[s] - overlap[s]
    again = np.zeros(count, dtype=np.int64)
    for s in range(len(document)):
        d = document[s]
        if stop[s] > furthest[d]:
            again[d] = max(again[d], furthest[d] - start[s])
    k = 0
    tails = True
    for d in range(count):
        went = furthest[d] > 0
        if placed[d] + (was_repeated[d] if went else 0) != furthest[d]:
            tails = False
        if furthest[d] + dropped[d] >= lengths[d] and not (continued and d == count - 1):
            continue
        kept[k] = d
        # What stays begins where the document's next row does, with what that row repeats.
        moved[k] = furthest[d] - again[d] if went else 0
        repeated[k] = again[d] if went else was_repeated[d]
        k += 1
    return k, tails


@kernel
def admitted(
    offsets: NDArray[np.int64],
    first: int,
    longest: int | None,
    shortened: int,
    used: int,
    target: int,
    window_tokens: int,
    most_documents: int,
    enough: int,
    held: NDArray[np.int64],
) -> int:
    """How many documents of a block, from `first` on, a window takes whole.

    They are taken while the target was not reached before them and they fit.

    Args:
        offsets: (N + 1,) int64, of the block.
        longest, shortened: of documents above `longest` rows will hold `shortened` tokens (see
            `needed_tokens`); None for no limit.
        used, target, window_tokens: tokens held, aimed at, and held at most.
        most_documents: as many more may be held, or as many as bring the tokens up to `enough`.
        held: (N - first,) int64, filled with what rows will hold of each.
    """
    count = 0
    for i in range(first, len(offsets) - 1):
        length = offsets[i + 1] - offsets[i]
        if longest is not None and length > longest:
            length = np.int64(shortened)
        if used >= target or used + length > window_tokens:
            break
        if count >= most_documents and used >= enough:
            break
        held[count] = length
        used += length
        count += 1
    return count


def needed_tokens(packer: Packer, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) int64: tokens that rows will hold of documents of these lengths (N,), by overflow."""
    if packer.overflow in ("split", "error"):
        return lengths
    longest = packer.seq_lens[-1]
    keep = longest if packer.overflow == "truncate" else 0
    return np.where(lengths > longest, keep, lengths)


def not_full(plan: Plan, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(E,) bool: which of these rows are not full."""
    return plan.row_fill()[rows] < plan.seq_len[rows]


def oldest_tokens(lengths: NDArray[np.int64], batch_tokens: int) -> NDArray[np.int64]:
    """(N,) int64: of documents of these lengths (N,), the oldest tokens that make whole batches."""
    total = int(lengths.sum()) // batch_tokens * batch_tokens
    before = offsets_of(lengths)[:-1]
    return np.asarray(np.clip(total - before, 0, lengths))
