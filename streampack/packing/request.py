"""Request of a window to its packer in each round, and the reply: `WindowRequest`, `Selection`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import NO_FIELDS, Fields
from streampack.packing.choice import RowChoice
from streampack.packing.plan import Plan
from streampack.packing.row_limits import RowLimits


class MemberLengths(NamedTuple):
    """Lengths of the M documents in N groups.

    Attributes:
        lengths: (M,) int64, tokens per document, group by group.
        offsets: (N + 1,) int64 offsets of the groups into `lengths`.
    """

    lengths: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of_single(cls, lengths: NDArray[np.int64]) -> MemberLengths:
        """Make groups of one document each, with these lengths (N,)."""
        return cls(lengths, np.arange(len(lengths) + 1, dtype=np.int64))


class DocumentSizes(NamedTuple):
    """Sizes of N documents, by which a packer decides whether they fit a row.

    Attributes:
        lengths: (N,) int64, tokens per document.
        weights: (N,) int64 values by name, for packers with `weights`.
        members: documents of each group, for packers with `packs_members`.
    """

    lengths: NDArray[np.int64]
    weights: Fields = NO_FIELDS
    members: MemberLengths | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WindowRequest:
    """The N documents of a lane's window, and the conditions for selecting rows this round.

    Documents are in order of arrival. Only undelivered tokens are included: `lengths` excludes
    tokens that earlier rounds delivered, and a plan's offsets count from the first undelivered one.

    Attributes:
        lengths: (N,) int64, tokens left of each document, ready for `Packer.plan`. Only the last
            document may be held in part. Its length is then two rows above the tokens held, so that
            no other document shares a row with tokens that the window does not hold yet.
        remaining: (N,) int64, the same with the full length of the last document.
        held: (N,) int64, undelivered tokens of each document that the window holds. A row that
            needs more cannot go this round.
        delivered: (N,) int64, tokens of each document that earlier rounds delivered.
        rounds_left: (N,) int64, rounds that each document may still wait; at 0 or less it must go.
        batch_tokens: tokens per batch: a batch has ``batch_tokens // seq_len`` rows.
        seq_len: tokens of the packer's longest row.
        final: True for the last documents of a lane, which must all go.
        growing: True while the window is below its full size. If the packer selects no rows then,
            it is called with more documents.
        min_fill: share of a row's slots above which the row counts as full.
        carry: share of the tokens that may stay for the next round.
        step: number of batches that the lane has delivered.
        seed: seed of this round's random decisions.
        schedule_seed: seed of random decisions that must be equal in all lanes.
        choice: choice of the rows to deliver, which the functions of `packing.selection` ask.
        members: documents of each group, for packers with `packs_members`; else None.
        weights: (N,) int64 values by document field, for packers with `weights`.
        limits: limits of a row.
    """

    lengths: NDArray[np.int64]
    remaining: NDArray[np.int64]
    held: NDArray[np.int64]
    delivered: NDArray[np.int64]
    rounds_left: NDArray[np.int64]
    batch_tokens: int
    seq_len: int
    final: bool
    growing: bool
    min_fill: float
    carry: float
    step: int
    seed: int
    schedule_seed: int
    choice: RowChoice = field(default_factory=RowChoice)
    members: MemberLengths | None = None
    weights: Fields = field(default_factory=dict)
    limits: RowLimits = field(default_factory=RowLimits)

    @property
    def rows_per_batch(self) -> int:
        """Rows per batch of the packer's longest rows."""
        return self.batch_tokens // self.seq_len

    @property
    def in_part(self) -> bool:
        """True if the window holds the last document only in part."""
        return len(self.held) > 0 and bool(self.remaining[-1] > self.held[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """A plan over the documents of a request, and the rows to deliver this round.

    A row is delivered after or together with all rows that hold earlier tokens of its documents, so
    that only the tail of a document stays in the window. Tokens that the plan does not place stay
    too.

    Attributes:
        plan: plan over the request's documents.
        rows: (E,) int64, indices of the rows to deliver, in order.
        batches: (B + 1,) int64 offsets of the batches into `rows`. The rows of a batch have one
            length; missing rows of a batch are filled with padding.
    """

    plan: Plan
    rows: NDArray[np.int64]
    batches: NDArray[np.int64]

    @classmethod
    def in_batches(cls, plan: Plan, rows: NDArray[np.int64], rows_per_batch: int) -> Selection:
        """Divide `rows` (E,) into batches of `rows_per_batch` rows."""
        ends = np.arange(0, len(rows) + rows_per_batch, rows_per_batch, dtype=np.int64)
        return cls(plan, rows, np.minimum(ends, len(rows)))
