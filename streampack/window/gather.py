"""Gathering: writes the rows of a plan to flat arrays.

`gather_rows` runs in the process of the lane (often a worker) and returns `PackedRows`, the compact
form of a batch: token ids in their narrow dtype and the boundaries of documents. All other
per-token fields are computed from it in the process that uses the batch (`derive_fields`).

Cost: one pass over the slots of a round, compiled; no Python per document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel, kernel_of
from streampack.documents.blocks import offsets_of
from streampack.packing.plan import PackingStats, RowColumns
from streampack.window.buffer import TokenBuffer
from streampack.window.entries import HeldBlocks
from streampack.window.packed_rows import PackedRows
from streampack.window.planned import PlannedWindow


class Pieces(NamedTuple):
    """The D document pieces of a batch, in order.

    Attributes:
        serial: (D,) serials of their documents; origin: (D,) origins of their documents.
        start, stop: (D,) slice [start, stop) of the document that the piece holds.
        slot: (D,) first slot of the piece in the batch.
        begins: (D,) bool, True for the first piece of a document.
        document: (D,) document indices, equal for pieces of one document.
    """

    serial: NDArray[np.int64]
    origin: NDArray[np.void]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    slot: NDArray[np.int64]
    begins: NDArray[np.bool_]
    document: NDArray[np.int64]

    def of_batch(self, first: int, last: int, slot: NDArray[np.int64]) -> Pieces:
        """Return the pieces [first, last) with `slot` (D,), their first slots in the batch."""
        return Pieces(
            self.serial[first:last],
            self.origin[first:last],
            self.start[first:last],
            self.stop[first:last],
            slot,
            self.begins[first:last],
            self.document[first:last],
        )


class RowStage(Protocol):
    """Stage that adds something to rows beside tokens and boundaries; picklable and stateless.

    An attribute `token_bytes` is the number of bytes per token that it uses in the window.
    """

    def __call__(self, rows: PackedRows, pieces: Pieces, held: HeldBlocks) -> PackedRows:
        """Return the rows with the addition."""

    def empty(self, rows: PackedRows) -> PackedRows:
        """Return rows of padding with an empty addition."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Settings of writing rows.

    Attributes:
        pad_id: token id of padding; eos_id: id of EOS tokens that a packer inserts, or -1.
        mask_repeated: leave tokens repeated from an earlier row out of the loss.
        attention_by_row: one attention segment per row instead of one per document piece.
        stages: row stages, applied in order.
        units: names of a document and of its tokens in messages.
    """

    pad_id: int
    eos_id: int
    attention_by_row: bool = False
    mask_repeated: bool = False
    stages: tuple[RowStage, ...] = ()
    units: tuple[str, str] = ("", "tokens")


def gather_rows(planned: PlannedWindow, held: TokenBuffer, layout: RowFormat) -> list[PackedRows]:
    """Gather the rows of a round from the window's arrays, all batches in one pass.

    Args:
        planned: the plan, the selected rows, their batches (the rows of a batch have one seq_len),
            and the positions of the documents.
        held: buffer with the documents as planned.
        layout: settings of writing rows.

    Returns:
        The batches, in order; their arrays are views of arrays that hold the whole round.
    """
    plan, rows = planned.plan, planned.rows
    entries, tokens, loss_mask = held.entries, held.tokens, held.loss_mask
    if len(rows) == 0:
        return []
    batches = len(planned.batches) - 1
    seq_lens = plan.seq_len[rows[planned.batches[:-1]]].astype(np.int64)
    rows_per_batch = planned.rows_per_batch
    places = offsets_of(rows_per_batch * seq_lens)
    eos_id = max(layout.eos_id, 0)
    widest = max(layout.pad_id, eos_id) >> (8 * tokens.dtype.itemsize)
    out = np.empty(places[-1], dtype=np.uint32 if widest else tokens.dtype)
    masked = loss_mask is not None or layout.mask_repeated
    mask_out = np.empty(len(out) if masked else 0, dtype=np.bool_)
    # Upper bounds: padding after every piece, a row of padding alone, a 0 before each batch.
    segments = int((plan.row_offsets[rows + 1] - plan.row_offsets[rows]).sum())
    most = 2 * segments + batches + int(rows_per_batch.sum())
    boundaries, piece, cu_seqlens = np.empty((3, most), dtype=np.int32)
    segment = np.empty(segments, dtype=np.int64)
    ends = np.zeros((batches + 1, 3), dtype=np.int64)
    counts = np.zeros((batches, 13), dtype=np.int64)
    sizes = np.zeros((batches, 3), dtype=np.int64)
    marks = _Marks(
        out.dtype.type(layout.pad_id), out.dtype.type(eos_id), layout.mask_repeated,
        layout.attention_by_row,
    )  # fmt: skip
    going, source = _Rows(rows, planned.batches, seq_lens, places), _held(planned, held)
    written = _Written(out, mask_out, boundaries, piece, cu_seqlens, segment, ends)
    _write(plan.columns, going, source, marks, written)
    _count(plan.columns, _counted(planned, held), source, written, counts)
    _measure(written, places, sizes)
    sources = entries.origin["source"][plan.document[segment]]
    pieces = _pieces(planned, segment, held) if layout.stages else None
    gathered = []
    bounds, numbers, measured, slots, many, widths = (
        column.tolist() for column in (ends, counts, sizes, places, rows_per_batch, seq_lens)
    )
    for b, (longest, loss_tokens, squares) in enumerate(measured):
        (run, attention, first), (run_end, attention_end, last) = bounds[b], bounds[b + 1]
        packed = PackedRows(
            widths[b],
            out[slots[b] : slots[b + 1]],
            boundaries[run + b : run_end + b + 1],
            piece[run:run_end],
            cu_seqlens[attention + b : attention_end + b + 1],
            mask_out[slots[b] : slots[b + 1]] if masked else None,
            sources[first:last],
            None,
            longest,
            loss_tokens,
            squares,
            PackingStats(many[b], slots[b + 1] - slots[b], *numbers[b]),
        )
        if pieces is not None:
            slot = packed.boundaries[:-1][packed.piece >= 0].astype(np.int64)
            of_batch = pieces.of_batch(first, last, slot)
            for stage in layout.stages:
                packed = stage(packed, of_batch, held.fields)
        gathered.append(packed)
    return gathered


_NO_MASK = np.zeros(0, dtype=np.bool_)


def labels_of_dropped(
    planned: PlannedWindow, held: TokenBuffer, documents: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Count labels, (2, D) int64, of documents (D,) that no row of this round holds.

    Row 0 counts labels delivered in earlier rounds, row 1 labels that are lost.
    """
    out = np.empty((2, len(documents)), dtype=np.int64)
    _labels_of_dropped(documents, _counted(planned, held), _held(planned, held), out)
    return out


def _held(planned: PlannedWindow, buffer: TokenBuffer) -> _Held:
    mask = _NO_MASK if buffer.loss_mask is None else buffer.loss_mask
    return _Held(planned.position, buffer.tokens, mask)


def _counted(planned: PlannedWindow, buffer: TokenBuffer) -> _Counted:
    entries, (before, after) = buffer.entries, buffer.learnt
    columns = entries.start, entries.held, entries.length
    return _Counted(planned.dropped, *columns, planned.lengths, before, after)


def _pieces(planned: PlannedWindow, segment: NDArray[np.int64], held: TokenBuffer) -> Pieces:
    """Return the pieces of a round; `Pieces.of_batch` sets their `slot`."""
    plan, entries = planned.plan, held.entries
    document = plan.document[segment]
    start = entries.start[document] + plan.start[segment]
    return Pieces(
        entries.serial[document],
        entries.origin[document],
        start,
        entries.start[document] + plan.stop[segment],
        start,
        start + plan.overlap[segment] == 0,
        document,
    )


class _Rows(NamedTuple):
    """Selected rows: batch b has the rows from batches[b] on and the slots from places[b] on."""

    rows: NDArray[np.int64]
    batches: NDArray[np.int64]
    seq_lens: NDArray[np.int64]
    places: NDArray[np.int64]


class _Held(NamedTuple):
    """The window's tokens, the offset of each entry, and the loss mask, which may be empty."""

    position: NDArray[np.int64]
    tokens: NDArray[np.generic]
    mask: NDArray[np.bool_]


class _Marks(NamedTuple):
    """Ids of slots without a document's token, and the rules of the loss; see `RowFormat`."""

    pad_id: np.generic
    eos_id: np.generic
    mask_repeated: bool
    by_row: bool


class _Counted(NamedTuple):
    """Inputs of the counts per entry, from `PlannedWindow`, `Entries` and `TokenBuffer`.

    Attributes:
        before, after: labels of the document before and after its held tokens.
    """

    dropped: NDArray[np.int64]
    start: NDArray[np.int64]
    held: NDArray[np.int64]
    length: NDArray[np.int64]
    lengths: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]


class _Written(NamedTuple):
    """Arrays of a round as in `PackedRows`, one batch after the other.

    Boundaries count from the beginning of their batch, and every batch's begin with a 0. So the
    boundaries of batch b begin b entries later than its runs.

    Attributes:
        segment: index of each piece's segment in the plan.
        ends: (batches + 1, 3) offsets of each batch's runs, attention segments and pieces.
    """

    tokens: NDArray[np.generic]
    mask: NDArray[np.bool_]
    boundaries: NDArray[np.int32]
    piece: NDArray[np.int32]
    cu_seqlens: NDArray[np.int32]
    segment: NDArray[np.int64]
    ends: NDArray[np.int64]


@kernel_of(lambda *call: call[4].tokens.size + 30 * call[4].piece.size)
def _write(plan: RowColumns, going: _Rows, held: _Held, marks: _Marks, written: _Written) -> None:
    """Write tokens, mask and boundaries of all batches; ends[b + 1] gets the ends of batch b."""
    row_offsets, _, document, start, stop, overlap, insert_eos, pad_after = plan
    rows, batches, seq_lens, places = going
    position, tokens, mask = held
    pad_id, eos_id, mask_repeated, by_row = marks
    out, mask_out, boundaries, piece, cu_seqlens, segment, ends = written
    has_source_mask, has_mask = len(mask) > 0, len(mask_out) > 0
    runs = 0
    attention = 0
    pieces = 0
    for b in range(len(ends) - 1):
        boundaries[runs + b] = 0
        cu_seqlens[attention + b] = 0
        first_piece = pieces
        base = places[b]
        seq_len = seq_lens[b]
        for i in range((places[b + 1] - base) // seq_len):
            begin = base + i * seq_len
            at = begin
            end = at + seq_len
            r = batches[b] + i
            low = row_offsets[rows[r]] if r < batches[b + 1] else 0
            high = row_offsets[rows[r] + 1] if r < batches[b + 1] else 0
            for s in range(low, high):
                source = position[document[s]] + start[s]
                size = stop[s] - start[s]
                # With slices the loop needs no test for negative indices and compiles to a copy.
                target = out[at : at + size]
                piece_tokens = tokens[source : source + size]
                for k in range(size):
                    target[k] = piece_tokens[k]
                if has_source_mask:
                    for k in range(size):
                        mask_out[at + k] = mask[source + k]
                elif has_mask:
                    mask_out[at : at + size] = True
                if mask_repeated:
                    mask_out[at : at + overlap[s]] = False
                at += size
                if insert_eos[s]:
                    out[at] = eos_id
                    if has_mask:
                        mask_out[at] = True
                    at += 1
                segment[pieces] = s
                piece[runs] = pieces - first_piece
                pieces += 1
                runs += 1
                boundaries[runs + b] = at - base
                if not by_row:
                    attention += 1
                    cu_seqlens[attention + b] = at - base
                gap = pad_after[s] if s + 1 < high else 0
                if gap > 0:
                    if by_row and cu_seqlens[attention + b] < at - base:
                        attention += 1
                        cu_seqlens[attention + b] = at - base
                    out[at : at + gap] = pad_id
                    if has_mask:
                        mask_out[at : at + gap] = False
                    at += gap
                    piece[runs] = -1
                    runs += 1
                    boundaries[runs + b] = at - base
                    attention += 1
                    cu_seqlens[attention + b] = at - base
            if at > begin and cu_seqlens[attention + b] < at - base:
                attention += 1
                cu_seqlens[attention + b] = at - base
            if at < end:
                out[at:end] = pad_id
                if has_mask:
                    mask_out[at:end] = False
                piece[runs] = -1
                runs += 1
                boundaries[runs + b] = end - base
                attention += 1
                cu_seqlens[attention + b] = end - base
        ends[b + 1, 0] = runs
        ends[b + 1, 1] = attention
        ends[b + 1, 2] = pieces


@kernel_of(lambda written, *_: written.mask.size + 10 * written.piece.size)
def _measure(written: _Written, places: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """Write per batch: longest attention segment, loss tokens, sum of squared real lengths."""
    _, mask, boundaries, piece, cu_seqlens, _, ends = written
    for b in range(len(out)):
        run = ends[b, 0]
        for a in range(ends[b, 1], ends[b + 1, 1]):
            low = np.int64(cu_seqlens[a + b])
            size = np.int64(cu_seqlens[a + b + 1]) - low
            out[b, 0] = max(out[b, 0], size)
            while boundaries[run + b + 1] <= low:
                run += 1
            if piece[run] < 0:
                continue
            out[b, 2] += size * size
            if len(mask):
                for k in range(places[b] + low + 1, places[b] + low + size):
                    out[b, 1] += mask[k]
            else:
                out[b, 1] += size - 1


@kernel_of(lambda *call: 40 * call[3].segment.size)
def _count(
    plan: RowColumns,
    counted: _Counted,
    held: _Held,
    written: _Written,
    out: NDArray[np.int64],
) -> None:
    """Write per batch the counts of `PackingStats` after rows and slots, in its order.

    A document is counted with its first segment, and as cut or cropped with its last.
    """
    start, stop, overlap, insert_eos = plan.start, plan.stop, plan.overlap, plan.insert_eos
    dropped, entry_start, entry_length, lengths = (
        counted.dropped, counted.start, counted.length, counted.lengths,
    )  # fmt: skip
    segment, ends = written.segment, written.ends
    for b in range(len(out)):
        counts = out[b]
        for i in range(ends[b, 2], ends[b + 1, 2]):
            s = segment[i]
            d = plan.document[s]
            size = stop[s] - start[s]
            body = size + insert_eos[s]
            counts[0] += 1
            counts[1] += size
            counts[2] += overlap[s]
            counts[3] += insert_eos[s]
            begin = entry_start[d] + start[s]
            again = (begin > 0) | (overlap[s] > 0)  # an earlier segment holds part of the document
            counts[5] += not again
            if stop[s] + dropped[d] >= lengths[d]:
                missing = entry_length[d] - entry_start[d] - stop[s]
                counts[4] += missing
                counts[6] += again
                counts[7] += missing > 0
                if missing > 0:
                    kept, lost = _kept_and_lost(d, stop[s], counted, held)
                    counts[11] += lost
                    counts[12] += (kept == 0) & (lost > 0)
            counts[9] += body * (body - 1) // 2


@kernel
def _kept_and_lost(d: int, stop: int, counted: _Counted, held: _Held) -> tuple[int, int]:
    """Count the labels of document d in rows up to its held token `stop`, and after it."""
    position, _, mask = held
    before, after = counted.before[d], counted.after[d]
    first = 1 if counted.start[d] == 0 else 0  # the first token of a document is no label
    size = counted.held[d]
    if not len(mask):
        return before + max(stop - first, 0), after + max(size - max(stop, first), 0)
    begin = position[d]
    for k in range(begin + first, begin + stop):
        before += mask[k]
    for k in range(begin + max(stop, first), begin + size):
        after += mask[k]
    return before, after


@kernel_of(lambda documents, _, held, *__: held.mask.size + 10 * documents.size)
def _labels_of_dropped(
    documents: NDArray[np.int64], counted: _Counted, held: _Held, out: NDArray[np.int64]
) -> None:
    """Compiled part of `labels_of_dropped`."""
    for i in range(len(documents)):
        out[0, i], out[1, i] = _kept_and_lost(documents[i], 0, counted, held)
