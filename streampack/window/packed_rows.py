"""PackedRows: a batch in the compact form in which it travels from a lane to the loop."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import NO_FIELDS, Fields
from streampack.packing.composition import Composition

#: One row per document piece of a batch: where it came from, and which of the document's tokens.
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
    >>> window.admit(Documents.from_arrays(ids), 0)
    (2, False)
    >>> planned = window.plan(final=True)
    >>> layout = RowFormat(pad_id=0, eos_id=-1)
    >>> (rows,) = gather_rows(planned, 8, window, layout)
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
        piece: (P,) int32, number of the document piece in each run, -1 for padding.
        cu_seqlens: (A + 1,) int32, 0 and the ends of the attention segments, padding's included.
        loss_mask: (T,) bool or None.
        source_ids: (D,) int32, source of each document piece.
        provenance: (D,) of dtype `PROVENANCE`, or None.
        max_seqlen: longest attention segment, padding segments included.
        num_loss_tokens: labels that are not ignored.
        sum_squared_lengths: over attention segments that are not padding.
        composition: counts of these rows.
        token_fields: by name, (T,) values of the tokens; 0 on padding.
        document_fields: by name, (D,) values of the documents that the pieces belong to.
        by_source: of a mixture, (sources, 4) int64: tokens, documents, loss tokens, and the epochs
            of which the lane has read all its part; or None.
        uncut: `cu_seqlens` as it was before `limit_context` cut segments, int32; the first token of
            these has no label. None if it is `cu_seqlens`.
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
    token_fields: Fields = NO_FIELDS
    document_fields: Fields = NO_FIELDS
    by_source: NDArray[np.int64] | None = None
    uncut: NDArray[np.int32] | None = None
