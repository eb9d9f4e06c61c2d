"""Rows of padding, for a lane or rank that runs out of documents before others."""

from __future__ import annotations

import numpy as np

from streampack.packing.plan import PackingStats
from streampack.window.gather import RowFormat
from streampack.window.packed_rows import PackedRows


def empty_rows(layout: RowFormat, rows: int, seq_len: int) -> PackedRows:
    """Return a batch of `rows` rows with `seq_len` slots of padding."""
    dtype = np.uint16 if layout.pad_id < 1 << 16 else np.uint32
    ends = np.arange(0, (rows + 1) * seq_len, seq_len, dtype=np.int32)
    packed = PackedRows(
        seq_len=seq_len,
        tokens=np.full(rows * seq_len, layout.pad_id, dtype=dtype),
        boundaries=ends,
        piece=np.full(rows, -1, dtype=np.int32),
        cu_seqlens=ends,
        loss_mask=None,
        source_ids=np.zeros(0, dtype=np.int32),
        provenance=None,
        max_seqlen=seq_len,
        num_loss_tokens=0,
        sum_squared_lengths=0,
        composition=PackingStats(rows=rows, slots=rows * seq_len),
    )
    for stage in layout.stages:
        packed = stage.empty(packed)
    return packed
