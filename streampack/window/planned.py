"""PlannedWindow: a plan over the window and the rows that go; what comes in, and what stays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.cached import cached_property
from streampack.errors import PlanError
from streampack.packing.overflow import kept_tokens
from streampack.packing.packer import Packer
from streampack.packing.plan import Plan, RowColumns, check_rows, sound_fill
from streampack.packing.request import DocumentSizes, Selection, WindowRequest


@dataclass(frozen=True, eq=False)
class PlannedWindow:
    """One round's plan and the rows of it that go.

    Attributes:
        plan: over the window's entries; segment coordinates count from an entry's `start`.
        rows: (E,) int64, rows that go, in order; whole batches, but for the last batch of a run.
        batches: (B + 1,) int64, where each batch begins in `rows`.
        position: (N + 1,) int64, where each entry's held tokens lie in the window's array.
        lengths: (N,) int64, tokens of each that this round or later ones plan: 0 for a document
            that overflow drops, and of one held in part some more than is held.
        rows_per_batch: (B,) int64; what a batch lacks is padding.
    """

    plan: Plan
    rows: NDArray[np.int64]
    batches: NDArray[np.int64]
    position: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows_per_batch: NDArray[np.int64]

    @cached_property
    def dropped(self) -> NDArray[np.int64]:
        """(N,) int64: tokens of each document that are lost if these rows go."""
        return self.plan.dropped_by(self.rows)


def planned_window(
    selection: Selection, request: WindowRequest, repeated: NDArray[np.int64], packer: Packer
) -> PlannedWindow:
    """A packer's answer as a planned window, once it is sure that its rows can be gathered.

    Everything that compiled code follows is checked, so that a mistake in a packer never reads
    memory outside of its arrays. `what_stays` finds out whether what stays of a document is its
    tail.

    Args:
        selection, request: the answer and the question.
        repeated: (N,) int64, `Entries.repeated`.
        packer: that answered.

    Raises:
        PlanError: the rows cannot be gathered, or the last ones would lose tokens.
    """
    if not isinstance(selection, Selection):
        raise PlanError(
            f"{type(packer).__name__}.plan_window returned {selection!r:.80}.",
            remedy="Return a streampack.packing.Selection, as `fullest_rows(plan, request)` does.",
        )
    plan, rows, batches = selection.plan, selection.rows, selection.batches
    position = np.empty(len(repeated) + 1, dtype=np.int64)
    fault, repeats = _examine(
        plan.columns, rows, batches, request.held, repeated, request.batch_tokens, position
    )
    if fault == 0 and plan.dropped.shape != repeated.shape:
        fault = 1
    if fault == 0 and request.final and _leaves_tokens(selection, request.lengths):
        fault = 6
    rows_per_batch = np.zeros(0, dtype=np.int64)
    if fault == 0:
        widths = plan.seq_len[rows[batches[:-1]]].astype(np.int64)
        rows_per_batch = packer.rows_per_batch(widths, request.batch_tokens)
        fault = 4 if (np.diff(batches) > rows_per_batch).any() else 0
    if fault == 1:
        check_rows(plan, np.maximum(request.lengths, request.remaining))
    if fault > 0:
        raise PlanError(
            f"{type(packer).__name__} chose rows to go, and {_FAULTS[fault]}.",
            "Correct its `plan_window`; `streampack.packing.Selection` says what it must return.",
        )
    if repeats:
        again = np.where(plan.start == 0, repeated[plan.document], 0)
        plan = replace(plan, overlap=plan.overlap + again)
    return PlannedWindow(plan, rows, batches, position, request.lengths, rows_per_batch)


_FAULTS = {
    1: "the arrays of its plan do not fit together",
    2: "one of them is not in its plan",
    3: "`batches` does not divide them into batches that are not empty",
    4: "the rows of a batch differ in length, or are more than it has room for",
    5: "one of them needs tokens that the window does not hold yet",
    6: "tokens would be left that no later round can place, because the request is final",
}


def _leaves_tokens(selection: Selection, lengths: NDArray[np.int64]) -> bool:
    """True if documents of these lengths (N,) have tokens that no row holds and none drops."""
    plan, rows = selection.plan, selection.rows
    goes = np.zeros(plan.num_rows, dtype=np.bool_)
    goes[rows] = True
    segments = np.repeat(goes, np.diff(plan.row_offsets))
    reached = np.zeros(len(lengths), dtype=np.int64)
    np.maximum.at(reached, plan.document[segments], plan.stop[segments])
    return bool((reached + plan.dropped_by(rows) < lengths).any())


@kernel
def _examine(
    plan: RowColumns,
    rows: NDArray[np.int64],
    batches: NDArray[np.int64],
    held: NDArray[np.int64],
    repeated: NDArray[np.int64],
    batch_tokens: int,
    position: NDArray[np.int64],
) -> tuple[int, bool]:
    """A key of `_FAULTS` or 0, and True if some document is `repeated`; fills in `position`."""
    seq_len, repeats = plan.seq_len, False
    position[0] = 0
    for d in range(len(held)):
        position[d + 1] = position[d] + held[d]
        repeats |= repeated[d] > 0
    fill = np.empty(len(seq_len), dtype=np.int64)
    if not sound_fill(plan, len(held), fill):
        return 1, repeats
    for row in rows:
        if row < 0 or row >= len(seq_len):
            return 2, repeats
    last = len(batches) - 1
    if last < 0 or batches[0] != 0 or batches[last] != len(rows):
        return 3, repeats
    for b in range(last):
        if batches[b + 1] <= batches[b] or batches[b + 1] > len(rows):
            return 3, repeats
        width = seq_len[rows[batches[b]]]
        if (batches[b + 1] - batches[b]) * width > batch_tokens:
            return 4, repeats
        for i in range(batches[b], batches[b + 1]):
            row = rows[i]
            if seq_len[row] != width:
                return 4, repeats
            for s in range(plan.row_offsets[row], plan.row_offsets[row + 1]):
                if plan.stop[s] > held[plan.document[s]]:
                    return 5, repeats
    return 0, repeats


@kernel
def what_stays(
    plan: RowColumns,
    rows: NDArray[np.int64],
    dropped: NDArray[np.int64],
    lengths: NDArray[np.int64],
    was_repeated: NDArray[np.int64],
    continued: bool,
    stays: NDArray[np.int64],
) -> tuple[int, bool]:
    """What the window keeps when these rows have gone.

    Args:
        rows: of the plan, that go.
        dropped, lengths: (N,) int64, of `PlannedWindow`.
        was_repeated: (N,) int64, `Entries.repeated` before.
        continued: the last document goes on after what is held.
        stays: (3, N) int64, filled for the K documents that stay: their numbers, how many of their
            held tokens go, and how many of those that stay were delivered already.

    Returns:
        K, and whether what stays of each is its tail.
    """
    document, start, stop = plan.document, plan.start, plan.stop
    kept, moved, repeated = stays[0], stays[1], stays[2]
    count = len(lengths)
    furthest = np.zeros(count, dtype=np.int64)
    placed = np.zeros(count, dtype=np.int64)
    for row in rows:
        for s in range(plan.row_offsets[row], plan.row_offsets[row + 1]):
            furthest[document[s]] = max(furthest[document[s]], stop[s])
            placed[document[s]] += stop[s] - start[s] - plan.overlap[s]
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
        # What stays begins where the document's next row does, with the tokens that row repeats.
        moved[k] = furthest[d] - again[d] if went else 0
        repeated[k] = again[d] if went else was_repeated[d]
        k += 1
    return k, tails


class Room(NamedTuple):
    """What a window takes: documents while it has fewer than `target` tokens.

    Attributes:
        used, most: tokens that it holds, and may hold.
        documents: so many more may be held, or as many as bring the tokens up to `enough`.
    """

    used: int
    target: int
    most: int
    documents: int
    enough: int


@kernel
def admitted(offsets: NDArray[np.int64], first: int, room: Room, held: NDArray[np.int64]) -> int:
    """How many documents of a block, from `first` on, a window takes whole.

    One more is taken as long as the target is not reached and it fits.

    Args:
        offsets: (N + 1,) int64, from the sums of the tokens that rows will hold.
        room: of the window.
        held: (N - first,) int64, filled with the tokens of each that rows will hold.
    """
    count, used = 0, room.used
    for i in range(first, len(offsets) - 1):
        length = offsets[i + 1] - offsets[i]
        if used >= room.target or used + length > room.most:
            break
        if count >= room.documents and used >= room.enough:
            break
        held[count] = length
        used += length
        count += 1
    return count


def needed_tokens(packer: Packer, sizes: DocumentSizes, batch_tokens: int) -> NDArray[np.int64]:
    """(N,) int64: tokens that rows will hold of documents of these sizes (N,), by overflow."""
    if packer.overflow == "drop":
        return np.where(packer.fits(sizes, batch_tokens), sizes.lengths, 0)
    return kept_tokens(sizes.lengths, packer.seq_lens[-1], packer.overflow)
