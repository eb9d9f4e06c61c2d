"""numpy_arrays: a batch as arrays for JAX and MaxText, made without tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.consumers.padded_segments import are_padding
from streampack.window.packed_rows import PackedRows
from streampack.window.token_fields import derive_fields


def numpy_arrays(packed: PackedRows) -> dict[str, Any]:
    """See `BatchAdapters.numpy`."""
    (ids, positions, labels), _ = derive_fields(packed)
    following = np.full(labels.size, -100, dtype=np.int64)
    following[:-1] = labels.reshape(-1)[1:]  # those of a segment's first token are -100
    counts = (following != -100).reshape(labels.shape)
    segments = _segments_of_rows(packed).reshape(labels.shape)
    position = positions.astype(np.int32)
    arrays: dict[str, Any] = {
        "inputs": ids.astype(np.int32),
        "inputs_position": position,
        "inputs_segmentation": segments,
        "targets": np.where(counts, following.reshape(labels.shape), 0).astype(np.int32),
        "targets_position": position,
        "targets_segmentation": np.where(counts, segments, np.int32(0)),
    }
    if packed.token_fields:
        shape = labels.shape
        arrays["fields"] = {name: a.reshape(shape) for name, a in packed.token_fields.items()}
    if packed.document_fields:
        arrays["document_fields"] = dict(packed.document_fields)
    return arrays


def _segments_of_rows(packed: PackedRows) -> NDArray[np.int32]:
    """(T,) the attention segment of every slot, from 1 in every row; 0 on padding."""
    filled = ~are_padding(packed.cu_seqlens, packed.boundaries, packed.piece)
    row = packed.cu_seqlens[:-1] // packed.seq_len
    number = np.cumsum(filled)
    before: NDArray[np.int64] = (number - filled)[np.searchsorted(row, row)]  # in rows before it
    segment = np.where(filled, number - before, 0).astype(np.int32)
    return np.repeat(segment, np.diff(packed.cu_seqlens))
