"""Empty rows: padding only, for a lane or rank that has no more documents while others have."""

from __future__ import annotations

import numpy as np

from streampack.packing.plan import Composition
from streampack.window.gather import RowFormat
from streampack.window.packed_rows import PROVENANCE, PackedRows, TreeColumns


def empty_rows(layout: RowFormat, rows: int, seq_len: int) -> PackedRows:
    """`rows` rows of `seq_len` slots of padding, as a batch."""
    nothing = np.zeros(0, dtype=np.int32)
    dtype = np.uint16 if layout.pad_id < 1 << 16 else np.uint32
    ends = np.arange(0, (rows + 1) * seq_len, seq_len, dtype=np.int32)
    return PackedRows(
        seq_len=seq_len,
        tokens=np.full(rows * seq_len, layout.pad_id, dtype=dtype),
        boundaries=ends,
        piece=np.full(rows, -1, dtype=np.int32),
        cu_seqlens=ends,
        loss_mask=None,
        source_ids=np.zeros(0, dtype=np.int32),
        provenance=np.zeros(0, dtype=PROVENANCE) if layout.provenance else None,
        max_seqlen=seq_len,
        num_loss_tokens=0,
        sum_squared_lengths=0,
        composition=Composition(rows=rows, slots=rows * seq_len),
        token_fields={
            name: np.zeros(0 if layout.tree else rows * seq_len, dtype=dtype)
            for name, dtype in layout.fields.token.items()
        },
        document_fields={
            name: np.zeros(0, dtype=dtype) for name, dtype in layout.fields.document.items()
        },
        tree=TreeColumns(nothing, np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.bool_))
        if layout.tree
        else None,
    )
