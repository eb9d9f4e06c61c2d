"""PlannedWindow: a plan over the window and its selected rows; admission and retention."""

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
    """One round's plan and the rows selected from it.

    Attributes:
        plan: plan over the window's entries; segment offsets count from an entry's `start`.
        rows: (E,) int64, selected rows in order; whole batches, except at the end of a run.
        batches: (B + 1,) int64 offsets of the batches into `rows`.
        position: (N + 1,) int64 offsets of the entries' held tokens in the window's array.
        lengths: (N,) int64, tokens of each document that this or a later round plans: 0 for a
            document dropped by overflow, and more than is held for one held in part.
        rows_per_batch: (B,) int64; missing rows of a batch are padding.
    """

    plan: Plan
    rows: NDArray[np.int64]
    batches: NDArray[np.int64]
    position: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows_per_batch: NDArray[np.int64]

    @cached_property
    def dropped(self) -> NDArray[np.int64]:
        """Tokens (N,) int64 of each document that are lost once the selected rows go."""
        return self.plan.dropped_by(self.rows)


def planned_window(
    selection: Selection, request: WindowRequest, repeated: NDArray[np.int64], packer: Packer
) -> PlannedWindow:
    """Validate a packer's selection and return it as a planned window.

    All values that compiled code uses as indices are checked, so that a faulty packer never causes
    a read outside of an array. `retained` checks that only the tails of documents stay.

    Args:
        selection, request: the packer's reply and the window's request.
        repeated: (N,) int64, `Entries.repeated`.
        packer: the packer that made the selection.

    Raises:
        PlanError: the rows cannot be gathered, or a final selection would lose tokens.
    """
    if not isinstance(selection, Selection):
        raise PlanError(
            f"{type(packer).__name__}.plan_window must return a Selection, got {selection!r:.80}.",
            remedy="Return for example `streampack.packing.fullest_rows(plan, request)`.",
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
        rows_per_batch = packer._rows_per_batch(widths, request.batch_tokens)
        fault = 4 if (np.diff(batches) > rows_per_batch).any() else 0
    if fault == 1:
        check_rows(plan, np.maximum(request.lengths, request.remaining))
    if fault > 0:
        raise PlanError(
            f"{type(packer).__name__} selected rows that cannot be gathered: {_FAULTS[fault]}.",
            "Correct its `plan_window`; `streampack.packing.Selection` documents the result.",
        )
    if repeats:
        again = np.where(plan.start == 0, repeated[plan.document], 0)
        plan = replace(plan, overlap=plan.overlap + again)
    return PlannedWindow(plan, rows, batches, position, request.lengths, rows_per_batch)


_FAULTS = {
    1: "the arrays of the plan do not fit together",
    2: "a row is not in the plan",
    3: "`batches` does not divide the rows into batches that are not empty",
    4: "the rows of a batch differ in length, or exceed the batch",
    5: "a row needs tokens that the window does not hold yet",
    6: "the request is final, and tokens would be left over",
}


def _leaves_tokens(selection: Selection, lengths: NDArray[np.int64]) -> bool:
    """Return True if documents of these lengths (N,) have tokens neither in a row nor dropped."""
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
    """Write `position`; return a key of `_FAULTS` or 0, and True if a document is `repeated`."""
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
def retained(
    plan: RowColumns,
    rows: NDArray[np.int64],
    dropped: NDArray[np.int64],
    lengths: NDArray[np.int64],
    was_repeated: NDArray[np.int64],
    continued: bool,
    stays: NDArray[np.int64],
) -> tuple[int, bool]:
    """Compute the documents and tokens that the window retains once these rows have gone.

    Args:
        rows: selected rows of the plan.
        dropped, lengths: (N,) int64, as in `PlannedWindow`.
        was_repeated: (N,) int64, `Entries.repeated` before this round.
        continued: True if the last document has tokens that are not held yet.
        stays: (3, N) int64 output for the K retained documents: indices, held tokens that go, and
            retained tokens that were delivered already.

    Returns:
        K, and True if only the tail of each document stays.
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
        # Retained tokens begin with the document's next row, including the ones that it repeats.
        moved[k] = furthest[d] - again[d] if went else 0
        repeated[k] = again[d] if went else was_repeated[d]
        k += 1
    return k, tails


class Room(NamedTuple):
    """Limits of admission: a window takes documents while it has fewer than `target` tokens.

    Attributes:
        used, most: tokens in the window, and their upper limit.
        documents: number of documents that may be added; it may be exceeded until the window has
            `enough` tokens.
    """

    used: int
    target: int
    most: int
    documents: int
    enough: int


@kernel
def admitted(offsets: NDArray[np.int64], first: int, room: Room, held: NDArray[np.int64]) -> int:
    """Return the number of documents, from `first` on, that a window takes whole.

    A document is taken if the target is not reached and it fits.

    Args:
        offsets: (N + 1,) int64, cumulative tokens that rows will hold.
        room: limits of the window.
        held: (N - first,) int64 output, tokens of each document that rows will hold.
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
    """Return the tokens (N,) int64 of each document that rows will hold after overflow."""
    if packer.overflow == "drop":
        return np.where(packer._fits(sizes, batch_tokens), sizes.lengths, 0)
    return kept_tokens(sizes.lengths, packer.seq_lens[-1], packer.overflow)
