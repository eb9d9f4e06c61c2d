"""Batches as numpy arrays for JAX and MaxText, made without torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.forms.attention import are_padding
from streampack.window.packed_rows import PackedRows, derive_fields

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch


def numpy(batch: PackedBatch) -> dict[str, Any]:
    """Return numpy arrays for JAX, with the names that MaxText's training step reads.

    (rows, seq_len) int32: `inputs`, `inputs_position` (from 0 in every attention segment),
    `inputs_segmentation` (from 1 in every row, 0 on padding), `targets` (the next token),
    `targets_position` and `targets_segmentation`. The last and `targets` are 0 where a token
    carries no loss. `padding_mask` is bool, True on padding. With ``token_fields`` there is also
    "fields", and with ``document_fields`` "document_fields": dictionaries like the attributes
    `fields` and `document_fields` of the batch. Arrays may share memory.

    >>> from streampack import PackedDataset, Topology
    >>> documents = [[11, 12, 13], [21, 22]]
    >>> dataset = PackedDataset(documents, seq_len=6, batch_size=1, topology=Topology())
    >>> arrays = next(iter(dataset)).numpy()
    >>> arrays["inputs"].tolist(), arrays["inputs_segmentation"].tolist()
    ([[11, 12, 13, 21, 22, 0]], [[1, 1, 1, 2, 2, 0]])
    >>> arrays["targets"].tolist(), arrays["targets_segmentation"].tolist()
    ([[12, 13, 0, 22, 0, 0]], [[1, 1, 0, 2, 0, 0]])

    Raises:
        ConfigError: the batch was moved to a device or pinned.
    """
    packed = batch._packed
    if packed is None:
        raise ConfigError(
            "numpy() needs a batch in host memory, but this one was moved to a device or pinned.",
            "Call numpy() on batches of a loader without device= and pin_memory=.",
            setting="device",
        )
    (ids, positions, labels), _ = derive_fields(packed)
    following = np.full(labels.size, -100, dtype=np.int64)
    following[:-1] = labels.reshape(-1)[1:]  # the label of a segment's first token is -100
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
        "padding_mask": segments == 0,
    }
    if packed.token_fields:
        arrays["fields"] = {
            name: values.reshape(*labels.shape, *values.shape[1:])
            for name, values in packed.token_fields.items()
        }
    if packed.document_fields:
        arrays["document_fields"] = dict(packed.document_fields)
    return arrays


def _segments_of_rows(packed: PackedRows) -> NDArray[np.int32]:
    """Return each slot's attention segment, (T,), counted from 1 in every row; 0 on padding."""
    filled = ~are_padding(packed.cu_seqlens, packed.boundaries, packed.piece)
    row = packed.cu_seqlens[:-1] // packed.seq_len
    number = np.cumsum(filled)
    # Segments in earlier rows.
    before: NDArray[np.int64] = (number - filled)[np.searchsorted(row, row)]
    segment = np.where(filled, number - before, 0).astype(np.int32)
    return np.repeat(segment, np.diff(packed.cu_seqlens))
