"""Groups, documents of one record, in one batch: in one row, if they fit there together.

Steps:
  0. If all groups of a window fit rows, each is packed as one document by best-fit-decreasing.
     Otherwise those that fit a row count as one document in what follows.
  1. As many batches as the tokens would fill. Groups in order of decreasing tokens, ties by
     arrival; each goes into the batch with most room (ties to the first) that takes all of its
     documents, else into a new one. So every batch gets long groups and short ones.
  2. Inside a batch a group's documents, longest first, each go into the row it leaves least room
     in, ties to the first row. If one finds no row, the group is not in this batch.
  3. Batches go as rows do otherwise (`fullest_rows`): a batch counts as a row of all its tokens.
  4. A group that does not even fit into an empty batch by step 2 is longer than a row in the sense
     of the overflow policy.

Cost: O(groups x batches of the window) comparisons, more where groups do not fit, and
O(documents x rows of a batch), compiled.
Keeps every token of the groups that fit, and never cuts a document.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents.blocks import offsets_of, ranges_of
from streampack.errors import PlanError
from streampack.packing.decreasing import BestFitDecreasing
from streampack.packing.plan import Plan
from streampack.packing.request import DocumentSizes, MemberLengths, Selection, WindowRequest
from streampack.packing.selection import fullest_rows


@dataclass(frozen=True, kw_only=True)
class WholeGroups(BestFitDecreasing):
    """Keeps the documents of a group in one batch; see the module's docstring for the steps.

    A run has it in place of BestFitDecreasing if records of its source have several documents.

    Args:
        seq_len: tokens per row.
        overflow: what happens to groups that do not fit into a batch, "drop" or "error".
    """

    overflow: Literal["drop", "error"] = "drop"

    packs_members = True
    revision = 2

    def fits(self, sizes: DocumentSizes, batch_tokens: int) -> NDArray[np.bool_]:
        """(N,) which groups fit into an empty batch."""
        members = sizes.members or MemberLengths.of_single(sizes.lengths)
        out = np.empty(len(members.offsets) - 1, dtype=np.bool_)
        _fit(*self._units(members), batch_tokens // self.seq_len, self.seq_len, out)
        return out

    def plan_window(self, request: WindowRequest) -> Selection:
        """Steps 0 to 3.

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
        """The documents that are placed one by one: a group that fits a row counts as one."""
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
        """The rows of all batches, of which the `chosen` (B,) go, in this order."""
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
    """The plan of which each row is a batch and each document a group; some (-1) are in none."""
    order = _placed_by(batch_of)
    return Plan.plain(
        offsets_of(np.bincount(batch_of[order], minlength=batches)), batch_tokens, order,
        np.zeros(len(order), dtype=np.int64), lengths[order],
        np.zeros(len(lengths), dtype=np.int64),
    )  # fmt: skip


def _placed_by(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those that have a place (>= 0), by place, those of one place in the order they have."""
    order = np.argsort(places, kind="stable")
    return order[np.searchsorted(places[order], 0) :]


@kernel
def _fit(
    sizes: NDArray[np.int64],
    offsets: NDArray[np.int64],
    rows: int,
    seq_len: int,
    out: NDArray[np.bool_],
) -> None:
    """Fill in which groups (N,) fit into an empty batch."""
    row_of = np.empty(len(sizes), dtype=np.int64)
    room = np.empty(rows, dtype=np.int64)
    for g in range(len(out)):
        own = sizes[offsets[g] : offsets[g + 1]]
        room[:] = seq_len
        out[g] = _put(own, _longest_first(own), room, row_of[offsets[g] : offsets[g + 1]])


@kernel
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
    """Fill in the batch of each group and the row in it of each member.

    Args:
        sizes, offsets: of the members; lengths: (N,) of the groups, 0 for one that is dropped.
        turn: (N,) the order in which groups are placed.
        batch_of: (N,), -1 for what is dropped; row_of: (M,).

    Returns:
        How many batches there are; -1 - i if group i does not fit into one.
    """
    count = int(lengths.sum() // (np.int64(rows) * seq_len))
    rooms = np.full((count + 1, rows), seq_len, dtype=np.int64)
    left = np.full(count + 1, np.int64(rows) * seq_len)  # slots of each batch, and of a new one
    batch_of[:] = -1
    row_of[:] = 0
    for g in turn:
        if lengths[g] == 0:
            continue
        own, found = sizes[offsets[g] : offsets[g + 1]], row_of[offsets[g] : offsets[g + 1]]
        order = _longest_first(own)
        tried = -1
        while batch_of[g] < 0:
            b = _most_room(left[:count], lengths[g], tried)
            if b < 0:
                break
            if _put(own, order, rooms[b], found):
                batch_of[g] = b
            tried = b
        if batch_of[g] < 0:
            if not _put(own, order, rooms[count], found):
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
    """The batch with most room, `least` or more, that comes after batch `after`; -1 for none."""
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
    found: NDArray[np.int64],
) -> bool:
    """Fill in the row of each member, and take its room; False, and nothing taken, if one has none.

    Args:
        sizes: (K,) of the members; order: (K,) in which they are placed.
        room: (rows,) slots that are left of each row; found: (K,).
    """
    for k in range(len(order)):
        size = sizes[order[k]]
        best = -1
        for r in range(len(room)):
            if room[r] >= size and (best < 0 or room[r] < room[best]):
                best = r
        if best < 0:
            for j in range(k):
                room[found[order[j]]] += sizes[order[j]]
            return False
        room[best] -= size
        found[order[k]] = best
    return True
