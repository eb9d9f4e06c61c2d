"""Plan: the assignment of document slices to rows, its statistics, and its validation."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents.blocks import offsets_of
from streampack.errors import PlanError


@dataclass(slots=True)
class PackingStats:
    """Counts over packed rows. Add two with ``+``; ratios are properties.

    Attributes:
        rows: number of rows; slots: their capacity in tokens.
        segments: document pieces placed; placed: their tokens, repeated ones included.
        repeated: tokens placed a second time (overlap); inserted_eos: EOS added by the packer.
        dropped: tokens that no row holds.
        documents: documents with at least one placed token.
        documents_cut: documents in more than one segment; documents_cropped: documents that lost
            tokens, or were lost whole; documents_lost: documents lost whole.
        context_sum: for every placed token, the tokens of its document before it in its segment,
            summed.
        shared: in trees, tokens that share their slot with another sequence.
        loss_dropped: dropped tokens that carry loss, except the first token of a document, which
            has no label; documents_unlearnt: documents that lost all their tokens with loss.
    """

    rows: int = 0
    slots: int = 0
    segments: int = 0
    placed: int = 0
    repeated: int = 0
    inserted_eos: int = 0
    dropped: int = 0
    documents: int = 0
    documents_cut: int = 0
    documents_cropped: int = 0
    documents_lost: int = 0
    context_sum: int = 0
    shared: int = 0
    loss_dropped: int = 0
    documents_unlearnt: int = 0

    def __add__(self, other: PackingStats) -> PackingStats:
        return PackingStats(*map(add, _counts(self), _counts(other)))

    @property
    def padding(self) -> int:
        """Number of slots that hold neither a document's token nor an inserted EOS."""
        return self.slots - self.placed - self.inserted_eos

    @property
    def padding_ratio(self) -> float:
        """Share of slots that are padding."""
        return self.padding / self.slots if self.slots else 0.0

    @property
    def utilisation(self) -> float:
        """1 - padding ratio."""
        return 1.0 - self.padding_ratio

    @property
    def truncation_ratio(self) -> float:
        """Share of documents cut into more than one segment."""
        return self.documents_cut / self.documents if self.documents else 0.0

    @property
    def concatenation_ratio(self) -> float:
        """Documents per row, as in "Bucket Pre-training is All You Need"."""
        return self.documents / self.rows if self.rows else 0.0

    @property
    def dropped_ratio(self) -> float:
        """Share of the incoming tokens that were dropped."""
        total = self.placed - self.repeated + self.dropped
        return self.dropped / total if total else 0.0

    @property
    def repetition_ratio(self) -> float:
        """Share of the placed tokens that are repetitions."""
        return self.repeated / self.placed if self.placed else 0.0

    @property
    def mean_context(self) -> float:
        """Mean number of tokens of the same document before a token in its segment."""
        tokens = self.placed + self.inserted_eos
        return self.context_sum / tokens if tokens else 0.0


_counts = attrgetter(*PackingStats.__slots__)


class RowColumns(NamedTuple):
    """Columns of a `Plan`'s rows and segments, in the form that kernels take."""

    row_offsets: NDArray[np.int64]
    seq_len: NDArray[np.int32]
    document: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    overlap: NDArray[np.int64]
    insert_eos: NDArray[np.bool_]
    pad_after: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Columns that describe R rows of S segments over N documents.

    Row r holds the segments ``row_offsets[r]:row_offsets[r + 1]`` in order. The slots of its
    `seq_len` beyond its segments, inserted EOS and `pad_after` are padding at its end.

    For example documents of five and two tokens in two rows of four, eight slots:

    >>> from streampack.packing import BestFitDecreasing
    >>> plan = BestFitDecreasing(seq_len=4).plan(np.array([5, 2]), final=True, seed=0)
    >>> plan.row_offsets.tolist()  # segment 0 is row 0; segments 1 and 2 are row 1
    [0, 1, 3]
    >>> plan.document.tolist(), plan.start.tolist(), plan.stop.tolist()
    ([0, 1, 0], [0, 0, 4], [4, 2, 5])
    >>> plan.row_fill().tolist()  # the last slot of row 1 is padding
    [4, 3]

    Attributes:
        row_offsets: (R + 1,) int64 offsets into the segment arrays.
        seq_len: (R,) int32, tokens per row.
        document: (S,) int64, index of the segment's document.
        start, stop: (S,) int64, the slice ``[start, stop)`` of the document; never empty.
        overlap: (S,) int64, tokens at the head repeated from the document's previous segment.
        insert_eos: (S,) bool, True if the packer adds an EOS after the segment.
        pad_after: (S,) int64, padding inside the row after the segment (alignment, atoms).
        dropped: (N,) int64, tokens of each document that no row holds.
        dropped_with: (N,) int64, the row in which a whole piece of the document found no room; the
            piece is dropped only if that row is delivered. -1 if there is no such piece; None is -1
            for all documents.
    """

    row_offsets: NDArray[np.int64]
    seq_len: NDArray[np.int32]
    document: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    overlap: NDArray[np.int64]
    insert_eos: NDArray[np.bool_]
    pad_after: NDArray[np.int64]
    dropped: NDArray[np.int64]
    dropped_with: NDArray[np.int64] | None = None

    @classmethod
    def plain(
        cls,
        row_offsets: NDArray[np.int64],
        seq_len: int | NDArray[np.int64],
        document: NDArray[np.int64],
        start: NDArray[np.int64],
        stop: NDArray[np.int64],
        dropped: NDArray[np.int64],
    ) -> Plan:
        """Build a plan that repeats nothing, inserts nothing and pads only at the ends of rows.

        `seq_len` is one length for all rows, or (R,) lengths; other arguments are as in `Plan`.
        """
        segments = len(document)
        return cls(
            row_offsets=row_offsets,
            seq_len=np.full(len(row_offsets) - 1, seq_len, dtype=np.int32),
            document=document,
            start=start,
            stop=stop,
            overlap=np.zeros(segments, dtype=np.int64),
            insert_eos=np.zeros(segments, dtype=np.bool_),
            pad_after=np.zeros(segments, dtype=np.int64),
            dropped=dropped,
        )

    @property
    def columns(self) -> RowColumns:
        """The columns of rows and segments, for kernels."""
        return RowColumns(
            self.row_offsets, self.seq_len, self.document, self.start, self.stop, self.overlap,
            self.insert_eos, self.pad_after,
        )  # fmt: skip

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.seq_len)

    @property
    def num_segments(self) -> int:
        """S."""
        return len(self.document)

    def dropped_by(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens (N,) int64 of each document dropped if only `rows` are delivered."""
        if self.dropped_with is None:
            return self.dropped
        goes = np.zeros(self.num_rows + 1, dtype=np.bool_)
        goes[rows] = goes[-1] = True
        return np.where(goes[self.dropped_with], self.dropped, 0)

    def row_fill(self) -> NDArray[np.int64]:
        """Return the used slots (R,) int64 of each row: tokens, inserted EOS and `pad_after`."""
        return _per_row(self, self.stop - self.start + self.insert_eos + self.pad_after)

    def metrics(self, lengths: NDArray[np.int64]) -> PackingStats:
        """Return the composition of the plan over documents of lengths (N,), all with loss."""
        lengths = np.asarray(lengths, dtype=np.int64)
        labels, kept = np.maximum(lengths - 1, 0), np.maximum(lengths - self.dropped - 1, 0)
        size = self.stop - self.start
        segments = np.bincount(self.document, minlength=len(lengths))
        body = size + self.insert_eos
        slots = int(self.seq_len.sum(dtype=np.int64))
        return PackingStats(
            rows=self.num_rows,
            slots=slots,
            segments=self.num_segments,
            placed=int(size.sum()),
            repeated=int(self.overlap.sum()),
            inserted_eos=int(self.insert_eos.sum()),
            dropped=int(self.dropped.sum()),
            documents=int((segments > 0).sum()),
            documents_cut=int((segments > 1).sum()),
            documents_cropped=int((self.dropped > 0).sum()),
            documents_lost=int(((segments == 0) & (lengths > 0)).sum()),
            context_sum=int((body * (body - 1) // 2).sum()),
            loss_dropped=int((labels - kept).sum()),
            documents_unlearnt=int(((kept == 0) & (labels > 0)).sum()),
        )


def check_plan(plan: Plan, lengths: NDArray[np.int64]) -> None:
    """Raise `PlanError`, naming the broken rule, unless `plan` accounts for every token.

    The rules hold for every packer:
      1. The arrays fit together and point at existing rows and documents; no row is empty.
      2. No segment is empty or leaves its document.
      3. Segments, inserted EOS and padding of a row fit in its `seq_len`.
      4. A document's segments, in order of start (rows may be shuffled), cover it from its first
         token without a gap, each beginning `overlap` tokens before the previous one ended.
      5. `dropped` counts exactly the tokens that no segment covers.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    check_rows(plan, lengths)
    _check_coverage(plan, lengths)


def check_rows(plan: Plan, lengths: NDArray[np.int64]) -> None:
    """Raise `PlanError` unless rules 1 to 3 of `check_plan` hold, which gathering rows requires."""
    _check_shapes(plan, len(lengths))
    size = plan.stop - plan.start
    if (plan.start < 0).any() or (size <= 0).any():
        _broken("a segment is empty or starts before its document", np.flatnonzero(size <= 0))
    outside = np.flatnonzero(plan.stop > lengths[plan.document])
    if len(outside):
        _broken("a segment ends after its document", outside)
    if (plan.pad_after < 0).any():
        _broken("padding is negative", np.flatnonzero(plan.pad_after < 0))
    used = _per_row(plan, size + plan.insert_eos + plan.pad_after)
    if (used > plan.seq_len).any():
        _broken("a row is longer than its seq_len", np.flatnonzero(used > plan.seq_len))


_MOST = (1 << 31) - 1  # largest row in tokens; sums of that many slots cannot overflow


@kernel
def sound_fill(plan: RowColumns, num_documents: int, fill: NDArray[np.int64]) -> bool:
    """Write the used slots of each row to `fill` (R,); return False for an invalid plan.

    It checks rules 1 to 3 of `check_plan`, except for the documents' lengths, so that compiled code
    can index by the plan.
    """
    row_offsets, seq_len, document, start, stop, overlap, insert_eos, pad_after = plan
    rows, segments = len(seq_len), len(document)
    if len(row_offsets) != rows + 1 or row_offsets[0] != 0 or row_offsets[rows] != segments:
        return False
    if len(start) != segments or len(stop) != segments or len(overlap) != segments:
        return False
    if len(insert_eos) != segments or len(pad_after) != segments:
        return False
    wrong = False  # no branches, so that the loop compiles to vector instructions
    for s in range(segments):
        wrong |= (document[s] < 0) | (document[s] >= num_documents)
        wrong |= (start[s] < 0) | (stop[s] <= start[s]) | (stop[s] - start[s] > _MOST)
        wrong |= (pad_after[s] < 0) | (pad_after[s] > _MOST)
    if wrong:
        return False
    for r in range(rows):
        if row_offsets[r + 1] <= row_offsets[r] or row_offsets[r + 1] > segments:
            return False
        used = 0
        for s in range(row_offsets[r], row_offsets[r + 1]):
            used += stop[s] - start[s] + insert_eos[s] + pad_after[s]
        if used > seq_len[r]:
            return False
        fill[r] = used
    return True


def _check_shapes(plan: Plan, num_documents: int) -> None:
    segments = plan.num_segments
    for name in ("start", "stop", "overlap", "insert_eos", "pad_after"):
        if getattr(plan, name).shape != (segments,):
            raise PlanError(
                f"`{name}` has shape {getattr(plan, name).shape} for {segments} segments."
            )
    offsets = plan.row_offsets
    if offsets.shape != (plan.num_rows + 1,) or offsets[0] != 0 or offsets[-1] != segments:
        raise PlanError("`row_offsets` does not span the segments.")
    if (np.diff(offsets) <= 0).any():
        _broken("a row holds no segment", np.flatnonzero(np.diff(offsets) <= 0))
    if plan.dropped.shape != (num_documents,) or (plan.dropped < 0).any():
        raise PlanError("`dropped` is not one count >= 0 per document.")
    if segments and not (plan.document.min() >= 0 and plan.document.max() < num_documents):
        raise PlanError("A segment names a document that does not exist.")


def _check_coverage(plan: Plan, lengths: NDArray[np.int64]) -> None:
    order = np.lexsort((plan.stop, plan.start, plan.document))
    document, start, stop = plan.document[order], plan.start[order], plan.stop[order]
    overlap = plan.overlap[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = document[1:] != document[:-1]
    if (start[first] != 0).any() or (overlap[first] != 0).any():
        _broken("a document does not begin at its first token", document[first][start[first] != 0])
    later = np.flatnonzero(~first)
    gap = start[later] != stop[later - 1] - overlap[later]
    if gap.any():
        _broken("a document has a gap or an undeclared overlap", document[later][gap])
    bad = (overlap[later] < 0) | (overlap[later] >= stop[later] - start[later])
    if bad.any():
        _broken("a segment repeats nothing but old tokens", document[later][bad])
    covered = np.zeros(len(lengths), dtype=np.int64)
    np.maximum.at(covered, document, stop)
    wrong = np.flatnonzero(covered + plan.dropped != lengths)
    if len(wrong):
        _broken("a document's covered and dropped tokens do not add up to its length", wrong)


def _per_row(plan: Plan, values: NDArray[np.int64]) -> NDArray[np.int64]:
    sums = offsets_of(values)
    return np.asarray(sums[plan.row_offsets[1:]] - sums[plan.row_offsets[:-1]])


def _broken(rule: str, where: NDArray[np.int64]) -> None:
    raise PlanError(f"In this plan {rule} (at {where[:5].tolist()}).")
