"""Packing of groups, the documents of one record: in one batch, and in one row if they fit.

Steps:
  0. If all groups of a window fit rows, each is packed as one document by best-fit-decreasing.
     Otherwise a group that fits a row counts as one document in the following steps.
  1. The number of batches is the number that the tokens would fill. In order of decreasing tokens,
     ties by arrival, each group goes into the batch with most room (ties to the first) that takes
     all of its documents, else into a new batch. So every batch gets long groups and short ones.
  2. Inside a batch a group's documents, longest first, go into the row with least room that fits,
     ties to the first row. If a document fits no row, the group does not fit the batch.
  3. Batches are selected like rows (`fullest_rows`): a batch counts as a row of all its tokens.
  4. A group that does not fit an empty batch by step 2 is subject to the overflow policy, like a
     document longer than a row.

Cost: O(groups x batches of the window) comparisons, more where groups do not fit, and
O(documents x rows of a batch), compiled.
Keeps every token of the groups that fit, and never cuts a document.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel, kernel_of
from streampack.documents.blocks import offsets_of, ranges_of
from streampack.errors import PlanError
from streampack.packing.fit_decreasing import BestFitDecreasing
from streampack.packing.plan import Plan
from streampack.packing.request import DocumentSizes, MemberLengths, Selection, WindowRequest
from streampack.packing.selection import fullest_rows


@dataclass(frozen=True, kw_only=True)
class WholeGroups(BestFitDecreasing):
    """Keeps the documents of a group in one batch, by the steps of the module.

    It replaces BestFitDecreasing in a run with records of several documents.

    Args:
        seq_len: tokens per row.
        overflow: policy for groups that do not fit into a batch, "drop" or "error".
    """

    overflow: Literal["drop", "error"] = "drop"

    _packs_members = True
    _revision = 2

    def _fits(self, sizes: DocumentSizes, batch_tokens: int) -> NDArray[np.bool_]:
        """Return (N,) bool: groups that fit into an empty batch."""
        members = sizes.members or MemberLengths.of_single(sizes.lengths)
        out = np.empty(len(members.offsets) - 1, dtype=np.bool_)
        _fit(*self._units(members), batch_tokens // self.seq_len, self.seq_len, out)
        return out

    def plan_window(self, request: WindowRequest) -> Selection:
        """Run steps 0 to 3.

        Raises:
            PlanError: a group does not fit into a batch.
        """
        lengths = request.lengths
        if lengths.max(initial=0) <= self.seq_len:
            return super().plan_window(request)
        members = self._units(request.members or MemberLengths.of_single(lengths))
        rows_per_batch = request.rows_per_batch
        batch_of = np.empty(len(lengths), dtype=np.int64)
        row_of = np.empty(len(members.lengths), dtype=np.int64)
        batches = _place(
            *members, lengths, np.argsort(-lengths, kind="stable"), rows_per_batch, self.seq_len,
            batch_of, row_of,
        )  # fmt: skip
        if batches < 0:
            i = -1 - batches
            raise PlanError(
                f"Group {i} of the window has {lengths[i]} tokens in documents of up to "
                f"{members.lengths[members.offsets[i] : members.offsets[i + 1]].max()}, a batch "
                f"has {rows_per_batch} rows of {self.seq_len}.",
                'Filter such groups out, or use overflow="drop".',
                setting="overflow",
            )
        chosen = fullest_rows(
            _as_rows(batch_of, lengths, batches, request.batch_tokens),
            replace(request, seq_len=request.batch_tokens),
        ).rows
        return self._selection(request, members, batch_of, row_of, batches, chosen)

    def _units(self, members: MemberLengths) -> MemberLengths:
        """Return the documents to be placed; a group that fits a row counts as one document."""
        sums = np.diff(offsets_of(members.lengths)[members.offsets])
        sizes = np.diff(members.offsets)
        whole = (sums <= self.seq_len) & (sizes > 0)
        lengths = members.lengths.copy()
        lengths[members.offsets[:-1][whole]] = sums[whole]
        kept = np.ones(len(lengths), dtype=np.bool_)
        kept[ranges_of(members.offsets[:-1][whole] + 1, sizes[whole] - 1)] = False
        return MemberLengths(lengths[kept], offsets_of(np.where(whole, 1, sizes)))

    def _selection(
        self,
        request: WindowRequest,
        members: MemberLengths,
        batch_of: NDArray[np.int64],
        row_of: NDArray[np.int64],
        batches: int,
        chosen: NDArray[np.int64],
    ) -> Selection:
        """Plan the rows of all batches, and select the `chosen` batches (B,) in this order."""
        each = request.rows_per_batch
        group = np.repeat(np.arange(len(batch_of)), np.diff(members.offsets))
        start = offsets_of(members.lengths)[:-1]
        start = start - start[members.offsets[:-1]][group]
        row = batch_of[group] * each + row_of
        order = _placed_by(row)
        used, sizes = np.unique(row[order], return_counts=True)
        plan = Plan.plain(
            offsets_of(sizes), self.seq_len, group[order], start[order],
            (start + members.lengths)[order], np.zeros(len(batch_of), dtype=np.int64),
        )  # fmt: skip
        begin = np.searchsorted(used, np.arange(batches + 1) * each)
        many = np.diff(begin)[chosen]
        return Selection(plan, ranges_of(begin[chosen], many), offsets_of(many))


def _as_rows(
    batch_of: NDArray[np.int64], lengths: NDArray[np.int64], batches: int, batch_tokens: int
) -> Plan:
    """Build a plan with batches as rows and groups as documents; -1 leaves a group out."""
    order = _placed_by(batch_of)
    return Plan.plain(
        offsets_of(np.bincount(batch_of[order], minlength=batches)), batch_tokens, order,
        np.zeros(len(order), dtype=np.int64), lengths[order],
        np.zeros(len(lengths), dtype=np.int64),
    )  # fmt: skip


def _placed_by(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of entries with a place (>= 0), stably sorted by place."""
    order = np.argsort(places, kind="stable")
    return order[np.searchsorted(places[order], 0) :]


@kernel_of(lambda sizes, offsets, rows, *_: sizes.size * (rows + 10))
def _fit(
    sizes: NDArray[np.int64],
    offsets: NDArray[np.int64],
    rows: int,
    seq_len: int,
    out: NDArray[np.bool_],
) -> None:
    """Set `out` (N,) to True for groups that fit into an empty batch."""
    row_of = np.empty(len(sizes), dtype=np.int64)
    room = np.empty(rows, dtype=np.int64)
    for g in range(len(out)):
        members = sizes[offsets[g] : offsets[g + 1]]
        room[:] = seq_len
        out[g] = _put(members, _longest_first(members), room, row_of[offsets[g] : offsets[g + 1]])


@kernel_of(lambda sizes, *call: sizes.size * (call[3] + 10) + call[1].size ** 2 / 10)
def _place(
    sizes: NDArray[np.int64],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
    turn: NDArray[np.int64],
    rows: int,
    seq_len: int,
    batch_of: NDArray[np.int64],
    row_of: NDArray[np.int64],
) -> int:
    """Write the batch of each group, and the row in the batch of each member.

    Args:
        sizes, offsets: tokens of the members, ragged by group; lengths: (N,) tokens of the groups,
            0 for a dropped one.
        turn: (N,) placement order of the groups.
        batch_of: (N,) output, -1 for a dropped group; row_of: (M,) output.

    Returns:
        The number of batches; -1 - i if group i does not fit into a batch.
    """
    count = int(lengths.sum() // (np.int64(rows) * seq_len))
    rooms = np.full((count + 1, rows), seq_len, dtype=np.int64)
    left = np.full(count + 1, np.int64(rows) * seq_len)  # free slots; the last is a new batch
    batch_of[:] = -1
    row_of[:] = 0
    for g in turn:
        if lengths[g] == 0:
            continue
        members, member_rows = (
            sizes[offsets[g] : offsets[g + 1]],
            row_of[offsets[g] : offsets[g + 1]],
        )
        order = _longest_first(members)
        tried = -1
        while batch_of[g] < 0:
            b = _most_room(left[:count], lengths[g], tried)
            if b < 0:
                break
            if _put(members, order, rooms[b], member_rows):
                batch_of[g] = b
            tried = b
        if batch_of[g] < 0:
            if not _put(members, order, rooms[count], member_rows):
                return -1 - int(g)
            batch_of[g] = count
            count += 1
            if count == len(left):
                rooms = np.concatenate((rooms, np.full((count, rows), seq_len, dtype=np.int64)))
                left = np.concatenate((left, np.full(count, np.int64(rows) * seq_len)))
        left[batch_of[g]] -= lengths[g]
    return count


@kernel
def _most_room(left: NDArray[np.int64], least: int, after: int) -> int:
    """Return the next batch after `after`, by decreasing room of at least `least`, or -1."""
    best = -1
    for b in range(len(left)):
        if left[b] < least or (best >= 0 and left[b] <= left[best]):
            continue
        if after < 0 or left[b] < left[after] or (left[b] == left[after] and b > after):
            best = b
    return best


@kernel
def _longest_first(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.argsort(-sizes, kind="mergesort")


@kernel
def _put(
    sizes: NDArray[np.int64],
    order: NDArray[np.int64],
    room: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> bool:
    """Write the row of each member to `rows` and reduce `room`; return False if one fits no row.

    Args:
        sizes: (K,) tokens of the members; order: (K,) placement order.
        room: (rows,) free slots of each row, unchanged on failure; found: (K,) output.
    """
    for k in range(len(order)):
        size = sizes[order[k]]
        best = -1
        for r in range(len(room)):
            if room[r] >= size and (best < 0 or room[r] < room[best]):
                best = r
        if best < 0:
            for j in range(k):
                room[rows[order[j]]] += sizes[order[j]]
            return False
        room[best] -= size
        rows[order[k]] = best
    return True
