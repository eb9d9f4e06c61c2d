"""Assembly: rows of a plan gathered into flat arrays, and the per-token fields made from them.

`gather_rows` runs where the lane runs (often a worker process) and makes `PackedRows`, the
compact form of a batch: token ids in their narrow dtype and the boundaries of documents.
`derive_fields` runs where the batch is used and makes the other per-token fields, which are
functions of the compact form, so that they never travel.

Cost: one pass each over the batch's slots, compiled; no Python per document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.packing.composition import Composition
from streampack.window import Entries, PlannedWindow

__all__ = ["PROVENANCE", "Fields", "PackedRows", "RowFormat", "derive_fields", "gather_rows"]

#: One row per document piece of a batch: where it came from, and which of the document's tokens.
PROVENANCE = np.dtype(
    [("source", "<i4"), ("shard", "<i4"), ("index", "<i8"), ("start", "<i8"), ("stop", "<i8")]
)


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How rows are written.

    Attributes:
        pad_id: id on padding; eos_id: id of EOS tokens a packer inserts, -1 if there are none.
        attention_by_row: one attention segment per row instead of one per document piece.
        provenance: record where every piece came from.
    """

    pad_id: int
    eos_id: int
    attention_by_row: bool = False
    provenance: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """A batch in compact form: R rows of seq_len, flattened to T slots.

    Attributes:
        seq_len: slots per row.
        tokens: (T,) uint16 or uint32.
        boundaries: (P + 1,) int32, ends of the document pieces and padding runs, in order.
        piece: (P,) int32, number of the document piece in each run, -1 for padding.
        cu_seqlens: (A + 1,) int32, ends of the attention segments, padding segments included.
        loss_mask: (T,) bool or None.
        source_ids: (D,) int32, source of each document piece.
        provenance: (D,) of dtype `PROVENANCE`, or None.
        max_seqlen: longest attention segment, padding segments included.
        num_loss_tokens: labels that are not ignored.
        sum_squared_lengths: over attention segments that are not padding.
        composition: counts of these rows.
    """

    seq_len: int
    tokens: NDArray[np.generic]
    boundaries: NDArray[np.int32]
    piece: NDArray[np.int32]
    cu_seqlens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_] | None
    source_ids: NDArray[np.int32]
    provenance: NDArray[np.void] | None
    max_seqlen: int
    num_loss_tokens: int
    sum_squared_lengths: int
    composition: Composition


class Fields(NamedTuple):
    """The per-token fields of a batch, each (R, seq_len)."""

    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    document_ids: NDArray[np.int32]


def gather_rows(
    planned: PlannedWindow,
    rows: NDArray[np.int64],
    num_rows: int,
    entries: Entries,
    tokens: NDArray[np.generic],
    loss_mask: NDArray[np.bool_] | None,
    layout: RowFormat,
) -> PackedRows:
    """Gather rows of a plan from the window's arrays.

    Args:
        planned: the plan and where its documents lie.
        rows: (r,) int64, rows of the plan, all of one seq_len.
        num_rows: rows of the batch; those beyond r are padding.
        entries: the window's documents as planned.
        tokens: the window's tokens; loss_mask: its mask, or None.
        layout: how rows are written.
    """
    plan = planned.plan
    seq_len = int(plan.seq_len[rows[0]])
    slots = num_rows * seq_len
    first, last = plan.row_offsets[rows], plan.row_offsets[rows + 1]
    most = 2 * int((last - first).sum()) + num_rows  # each piece may have padding behind it
    eos_id = max(layout.eos_id, 0)
    widest = max(layout.pad_id, eos_id) >> (8 * tokens.dtype.itemsize)
    out = np.empty(slots, dtype=np.uint32 if widest else tokens.dtype)
    mask_out = np.empty(slots if loss_mask is not None else 0, dtype=np.bool_)
    boundaries = np.empty(most + 1, dtype=np.int32)
    piece = np.empty(most, dtype=np.int32)
    cu_seqlens = np.empty(most + 1, dtype=np.int32)
    segment = np.empty(most, dtype=np.int64)
    runs, pieces, attention = _gather(
        plan.row_offsets, plan.document, plan.start, plan.stop, plan.insert_eos, plan.pad_after,
        rows, num_rows, seq_len, planned.position, tokens,
        loss_mask if loss_mask is not None else mask_out, loss_mask is not None,
        out.dtype.type(layout.pad_id), out.dtype.type(eos_id),
        layout.attention_by_row, out, mask_out, boundaries, piece, cu_seqlens, segment,
    )  # fmt: skip
    boundaries, piece = boundaries[: runs + 1], piece[:runs]
    cu_seqlens, segment = cu_seqlens[: attention + 1], segment[:pieces]
    max_seqlen, squared, loss_tokens = _measure(
        boundaries, piece, cu_seqlens, mask_out, loss_mask is not None
    )
    document = plan.document[segment]
    counts = _count(
        segment, plan.document, plan.start, plan.stop, plan.overlap, plan.insert_eos,
        plan.dropped, entries.start, entries.length, planned.lengths,
    )  # fmt: skip
    return PackedRows(
        seq_len=seq_len,
        tokens=out,
        boundaries=boundaries,
        piece=piece,
        cu_seqlens=cu_seqlens,
        loss_mask=mask_out if loss_mask is not None else None,
        source_ids=entries.origin["source"][document],
        provenance=_provenance(planned, segment, entries) if layout.provenance else None,
        max_seqlen=max_seqlen,
        num_loss_tokens=loss_tokens,
        sum_squared_lengths=squared,
        composition=Composition(num_rows, slots, *counts),
    )


def derive_fields(packed: PackedRows, out: Fields) -> None:
    """Write the per-token fields of a batch into preallocated arrays, in one pass.

    Positions count from the start of each attention segment. Labels are the ids, unshifted, and
    -100 on padding, on the first token of every attention segment and where the mask says so.
    """
    no_mask = packed.loss_mask is None
    _derive(
        packed.tokens, packed.boundaries, packed.piece, packed.cu_seqlens,
        np.zeros(0, dtype=np.bool_) if packed.loss_mask is None else packed.loss_mask,
        not no_mask, out.input_ids.ravel(), out.position_ids.ravel(), out.labels.ravel(),
        out.document_ids.ravel(),
    )  # fmt: skip


def _provenance(
    planned: PlannedWindow, segment: NDArray[np.int64], entries: Entries
) -> NDArray[np.void]:
    document = planned.plan.document[segment]
    rows = np.empty(len(segment), dtype=PROVENANCE)
    for name in ("source", "shard", "index"):
        rows[name] = entries.origin[name][document]
    rows["start"] = entries.start[document] + planned.plan.start[segment]
    rows["stop"] = entries.start[document] + planned.plan.stop[segment]
    return rows


@kernel
def _gather(
    row_offsets: NDArray[np.int64],
    document: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    insert_eos: NDArray[np.bool_],
    pad_after: NDArray[np.int64],
    rows: NDArray[np.int64],
    num_rows: int,
    seq_len: int,
    position: NDArray[np.int64],
    tokens: NDArray[np.generic],
    mask: NDArray[np.bool_],
    has_mask: bool,
    pad_id: np.generic,
    eos_id: np.generic,
    by_row: bool,
    out: NDArray[np.generic],
    mask_out: NDArray[np.bool_],
    boundaries: NDArray[np.int32],
    piece: NDArray[np.int32],
    cu_seqlens: NDArray[np.int32],
    segment: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Write tokens, mask and boundaries; returns the numbers of runs, pieces and segments."""
    boundaries[0] = 0
    cu_seqlens[0] = 0
    runs = 0
    pieces = 0
    attention = 0
    for r in range(num_rows):
        at = r * seq_len
        end = at + seq_len
        low = row_offsets[rows[r]] if r < len(rows) else 0
        high = row_offsets[rows[r] + 1] if r < len(rows) else 0
        for s in range(low, high):
            source = position[document[s]] + start[s]
            size = stop[s] - start[s]
            for k in range(size):
                out[at + k] = tokens[source + k]
            if has_mask:
                for k in range(size):
                    mask_out[at + k] = mask[source + k]
            at += size
            if insert_eos[s]:
                out[at] = eos_id
                if has_mask:
                    mask_out[at] = True
                at += 1
            segment[pieces] = s
            piece[runs] = pieces
            pieces += 1
            runs += 1
            boundaries[runs] = at
            if not by_row:
                attention += 1
                cu_seqlens[attention] = at
            padding = pad_after[s] if s + 1 < high else end - at
            if padding > 0:
                if by_row and at > r * seq_len and cu_seqlens[attention] < at:
                    attention += 1
                    cu_seqlens[attention] = at
                for k in range(padding):
                    out[at + k] = pad_id
                if has_mask:
                    for k in range(padding):
                        mask_out[at + k] = False
                at += padding
                piece[runs] = -1
                runs += 1
                boundaries[runs] = at
                attention += 1
                cu_seqlens[attention] = at
        if low == high:
            for k in range(at, end):
                out[k] = pad_id
            if has_mask:
                for k in range(at, end):
                    mask_out[k] = False
            piece[runs] = -1
            runs += 1
            boundaries[runs] = end
            attention += 1
            cu_seqlens[attention] = end
        elif cu_seqlens[attention] < end:
            attention += 1
            cu_seqlens[attention] = end
    return runs, pieces, attention


@kernel
def _measure(
    boundaries: NDArray[np.int32],
    piece: NDArray[np.int32],
    cu_seqlens: NDArray[np.int32],
    mask: NDArray[np.bool_],
    has_mask: bool,
) -> tuple[int, int, int]:
    """Longest attention segment, sum of squared real lengths, and loss tokens."""
    longest = 0
    squared = 0
    loss_tokens = 0
    run = 0
    for a in range(len(cu_seqlens) - 1):
        low = np.int64(cu_seqlens[a])
        size = np.int64(cu_seqlens[a + 1]) - low
        longest = max(longest, size)
        while boundaries[run + 1] <= low:
            run += 1
        if piece[run] < 0:
            continue
        squared += size * size
        if has_mask:
            for k in range(low + 1, low + size):
                loss_tokens += mask[k]
        else:
            loss_tokens += size - 1
    return longest, squared, loss_tokens


@kernel
def _count(
    segment: NDArray[np.int64],
    document: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    overlap: NDArray[np.int64],
    insert_eos: NDArray[np.bool_],
    dropped: NDArray[np.int64],
    entry_start: NDArray[np.int64],
    entry_length: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    """The counts of `Composition` behind rows and slots, in its order.

    A document is counted with its first segment, as cut or cropped with its last.
    """
    placed = 0
    repeated = 0
    inserted = 0
    lost_tokens = 0
    documents = 0
    cut = 0
    cropped = 0
    context = 0
    for s in segment:
        d = document[s]
        size = stop[s] - start[s]
        body = size + insert_eos[s]
        placed += size
        repeated += overlap[s]
        inserted += insert_eos[s]
        context += body * (body - 1) // 2
        begin = entry_start[d] + start[s]
        documents += begin == 0
        if stop[s] + dropped[d] >= lengths[d]:
            cut += begin > 0
            missing = entry_length[d] - entry_start[d] - stop[s]
            lost_tokens += missing
            cropped += missing > 0
    return (
        len(segment),
        placed,
        repeated,
        inserted,
        lost_tokens,
        documents,
        cut,
        cropped,
        0,
        context,
    )


@kernel
def _derive(
    tokens: NDArray[np.generic],
    boundaries: NDArray[np.int32],
    piece: NDArray[np.int32],
    cu_seqlens: NDArray[np.int32],
    mask: NDArray[np.bool_],
    has_mask: bool,
    input_ids: NDArray[np.int64],
    position_ids: NDArray[np.int64],
    labels: NDArray[np.int64],
    document_ids: NDArray[np.int32],
) -> None:
    """One pass over the slots; see `derive_fields` for the rules."""
    run = 0
    for a in range(len(cu_seqlens) - 1):
        low = np.int64(cu_seqlens[a])
        high = np.int64(cu_seqlens[a + 1])
        while boundaries[run] < high:
            begin = np.int64(boundaries[run])
            end = np.int64(boundaries[run + 1])
            number = piece[run]
            for k in range(begin, end):
                input_ids[k] = tokens[k]
                position_ids[k] = k - low
                document_ids[k] = number
            if number < 0:
                labels[begin:end] = -100
            elif has_mask:
                for k in range(begin, end):
                    labels[k] = np.int64(tokens[k]) if mask[k] else np.int64(-100)
            else:
                for k in range(begin, end):
                    labels[k] = tokens[k]
            run += 1
        labels[low] = -100
