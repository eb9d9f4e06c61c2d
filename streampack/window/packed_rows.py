"""PackedRows: the compact form of a batch between processes, and the fields derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents.blocks import NO_FIELDS, Fields
from streampack.packing.plan import PackingStats

#: Provenance of a document piece: the document's origin, and the slice of its tokens.
PROVENANCE = np.dtype(
    [("source", "<i4"), ("shard", "<i4"), ("index", "<i8"), ("start", "<i8"), ("stop", "<i8")]
)


class PackedRows(NamedTuple):
    """A batch in compact form: R rows of seq_len, flattened to T slots.

    For example documents of five and two tokens in two rows of four, eight slots:

    >>> from streampack.documents import Documents
    >>> from streampack.packing import BestFitDecreasing
    >>> from streampack.window.config import WindowConfig
    >>> from streampack.window.window import Window
    >>> from streampack.window.gather import RowFormat, gather_rows
    >>> packer = BestFitDecreasing(seq_len=4)
    >>> window = Window(WindowConfig(rows=8), packer, batch_tokens=8, seed=1)
    >>> ids = [np.array([11, 12, 13, 14, 15], np.uint16), np.array([21, 22], np.uint16)]
    >>> window.admit(Documents.from_arrays(ids), np.arange(2))
    (2, False)
    >>> planned = window.plan(final=True)
    >>> layout = RowFormat(pad_id=0, eos_id=-1)
    >>> (rows,) = gather_rows(planned, window.buffer, layout)
    >>> rows.tokens.reshape(2, 4).tolist()
    [[11, 12, 13, 14], [21, 22, 15, 0]]
    >>> rows.boundaries.tolist(), rows.piece.tolist()  # three pieces, then padding
    ([0, 4, 6, 7, 8], [0, 1, 2, -1])
    >>> rows.cu_seqlens.tolist()  # padding has an attention segment too
    [0, 4, 6, 7, 8]
    >>> rows.num_loss_tokens  # all but padding and the first token of each segment
    4

    Attributes:
        seq_len: slots per row.
        tokens: (T,) uint16 or uint32.
        boundaries: (P + 1,) int32, 0 and the ends of the P runs (document pieces and padding).
        piece: (P,) int32, index of the document piece in each run, -1 for padding.
        cu_seqlens: (A + 1,) int32, 0 and the ends of the attention segments, padding's included.
        loss_mask: (T,) bool or None.
        source_ids: (D,) int32, source of each document piece.
        provenance: (D,) of dtype `PROVENANCE`, or None.
        max_seqlen: longest attention segment, padding segments included.
        num_loss_tokens: number of labels that are not ignored.
        sum_squared_lengths: sum of squared lengths of attention segments other than padding.
        composition: counts over these rows.
        token_fields: values (T,) or (T, *shape) of the tokens by field name; 0 on padding.
        document_fields: values (D,) of the pieces' documents by field name.
        by_source: in a mixture (sources, 4) int64: tokens, documents, loss tokens, and the epochs
            that the lane has read completely; otherwise None.
        uncut: int32 `cu_seqlens` from before `limit_context` cut segments; only the first token of
            these segments has no label. None if nothing was cut.
        attached: parts that leaves add, by name. When a batch is handed out, a part has two
            methods: ``tensors()`` returns arrays by name, which move to the batch's device, and
            ``on_host()`` the rest, which stays with the batch, or None.
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
    composition: PackingStats
    token_fields: Fields = NO_FIELDS
    document_fields: Fields = NO_FIELDS
    by_source: NDArray[np.int64] | None = None
    uncut: NDArray[np.int32] | None = None
    attached: Mapping[str, Any] = NO_FIELDS


_NO_MASK = np.zeros(0, dtype=np.bool_)


def derive_fields(packed: PackedRows) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Compute the per-token fields of a batch in one compiled pass over its slots.

    They depend only on ids and boundaries, so they are computed in the process that uses the batch
    instead of being sent to it.

    Returns:
        (3, rows, seq_len) int64 with input ids, position ids and labels; and (rows, seq_len) int32
        document ids. Positions count from the start of each attention segment. Labels are the ids,
        unshifted, and -100 on padding, on the first token of every attention segment (except where
        `limit_context` cut one) and where the loss mask is False.
    """
    slots, seq_len = len(packed.tokens), packed.seq_len
    wide = np.empty((3, slots // seq_len, seq_len), dtype=np.int64)
    document_ids = np.empty((slots // seq_len, seq_len), dtype=np.int32)
    mask = packed.loss_mask
    _derive(
        packed.tokens, packed.boundaries, packed.piece, packed.cu_seqlens,
        packed.cu_seqlens if packed.uncut is None else packed.uncut,
        _NO_MASK if mask is None else mask,
        wide.reshape(3, slots), document_ids.reshape(slots),
    )  # fmt: skip
    return wide, document_ids


@kernel
def _derive(
    tokens: NDArray[np.generic],
    boundaries: NDArray[np.int32],
    piece: NDArray[np.int32],
    cu_seqlens: NDArray[np.int32],
    uncut: NDArray[np.int32],
    mask: NDArray[np.bool_],
    wide: NDArray[np.int64],
    document_ids: NDArray[np.int32],
) -> None:
    """Compiled part of `derive_fields`, which removes the labels of segments' first slots last."""
    run = 0
    for a in range(len(cu_seqlens) - 1):
        low = np.int64(cu_seqlens[a])
        high = np.int64(cu_seqlens[a + 1])
        while boundaries[run] < high:
            begin = np.int64(boundaries[run])
            end = np.int64(boundaries[run + 1])
            number = piece[run]
            held = tokens[begin:end]
            ids, positions, labels = wide[0, begin:end], wide[1, begin:end], wide[2, begin:end]
            documents = document_ids[begin:end]
            for k in range(len(held)):
                ids[k] = held[k]
            for k in range(len(held)):
                positions[k] = begin - low + k
            for k in range(len(held)):
                documents[k] = number
            if number < 0:
                labels[:] = -100
            elif len(mask):
                counts = mask[begin:end]
                for k in range(len(held)):
                    labels[k] = np.int64(held[k]) if counts[k] else np.int64(-100)
            else:
                for k in range(len(held)):
                    labels[k] = held[k]
            run += 1
    for a in range(len(uncut) - 1):
        wide[2, uncut[a]] = -100
