"""What a window asks of a packer each round, and what it gets: `WindowRequest`, `Selection`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import NO_FIELDS, Fields, joined_fields, part_of
from streampack.packing.plan import Plan

if TYPE_CHECKING:
    from streampack.packing.balancing import Balance


class MemberLengths(NamedTuple):
    """The documents that N groups consist of.

    Attributes:
        lengths: (M,) int64 tokens of each, group by group.
        offsets: (N + 1,) int64, where each group begins among them.
    """

    lengths: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of_single(cls, lengths: NDArray[np.int64]) -> MemberLengths:
        """Groups of one document each, with these lengths (N,)."""
        return cls(lengths, np.arange(len(lengths) + 1, dtype=np.int64))


class DocumentSizes(NamedTuple):
    """What decides whether documents (N,) fit a row.

    Attributes:
        lengths: (N,) int64 tokens of each.
        weights: by name, (N,) int64, for packers that have `weights`.
        members: of documents that are groups, for packers with `packs_members`.
    """

    lengths: NDArray[np.int64]
    weights: Fields = NO_FIELDS
    members: MemberLengths | None = None

    def first(self, count: int) -> DocumentSizes:
        """Those of the first `count` documents, or of all."""
        members = self.members
        if members is not None:
            offsets = members.offsets[: count + 1]
            members = MemberLengths(members.lengths[: offsets[-1]], offsets)
        return DocumentSizes(self.lengths[:count], part_of(self.weights, slice(count)), members)

    @classmethod
    def joined(cls, parts: Sequence[DocumentSizes]) -> DocumentSizes:
        """Those of several blocks, at least one; members count as documents."""
        return cls(
            np.concatenate([(part.members or part).lengths for part in parts]),
            joined_fields([part.weights for part in parts]),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WindowRequest:
    """The N documents that a lane's window holds, and what is to become of them this round.

    Documents are in order of arrival. Only what is left of each counts: tokens that earlier rounds
    delivered are not among its `lengths`, and places in a plan count from the first that is left.

    Attributes:
        lengths: (N,) int64, tokens left of each document; `Packer.plan` can take them as they are.
            Only the last document may be held in part. It counts two rows more than is held, so
            that no other document is put in a row with tokens that the window does not hold yet.
        remaining: (N,) int64, the same with the last document in full.
        held: (N,) int64, how many of the tokens left the window holds. A row that needs more
            cannot go this round.
        delivered: (N,) int64, tokens of each document that earlier rounds delivered.
        rounds_left: (N,) int64, rounds that each document may still wait; at 0 or less it must go.
        batch_tokens: tokens per batch: a batch has ``batch_tokens // seq_len`` rows.
        seq_len: tokens of the packer's longest row.
        final: nothing comes after these documents, so all of them go.
        growing: the window is not at its full size yet. A packer that gives no rows is asked again
            with more documents.
        min_fill: share of a row's slots above which it counts as full.
        carry: share of the tokens that may stay for the next round.
        step: batches that the lane has given before.
        seed: of the random decisions of this round.
        schedule_seed: of the random decisions that all lanes must make alike.
        balance: the schedule of costs that rows follow; None for none.
        members: of documents that are groups, for packers with `packs_members`; else None.
        weights: by name, (N,) int64 of the documents, for packers that have `weights`.
        capacity: what a row holds of each weight at most, where that is limited.
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
    balance: Balance | None = None
    members: MemberLengths | None = None
    weights: Fields = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows_per_batch(self) -> int:
        """Rows of a batch, if they are of the packer's longest."""
        return self.batch_tokens // self.seq_len

    @property
    def in_part(self) -> bool:
        """True if the window holds the last document only in part."""
        return len(self.held) > 0 and bool(self.remaining[-1] > self.held[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """A plan over the documents of a request, and the rows of it that go this round.

    With a row go all rows that hold earlier tokens of its documents, or they went before: what
    stays of a document is its tail. What the plan does not place stays too.

    Attributes:
        plan: the plan.
        rows: (E,) int64, the rows that go, in order.
        batches: (B + 1,) int64, where each batch begins in `rows`. The rows of a batch have one
            length. Where there are fewer of them than there is room for, the rest is padding.
    """

    plan: Plan
    rows: NDArray[np.int64]
    batches: NDArray[np.int64]

    @classmethod
    def in_batches(cls, plan: Plan, rows: NDArray[np.int64], rows_per_batch: int) -> Selection:
        """The selection of `rows` (E,), in batches of `rows_per_batch` rows."""
        ends = np.arange(0, len(rows) + rows_per_batch, rows_per_batch, dtype=np.int64)
        return cls(plan, rows, np.minimum(ends, len(rows)))
