"""The per-token fields of a batch, made from its compact form on the CPU.

They are functions of ids and boundaries, so they are made where the batch is used, and are not sent
between processes.

Cost: one compiled pass over the batch's slots.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.window.packed_rows import PackedRows

_NO_MASK = np.zeros(0, dtype=np.bool_)


def derive_fields(packed: PackedRows) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The per-token fields of a batch, in one pass.

    They are (3, rows, seq_len) int64, input ids, position ids and labels; and document ids, (rows,
    seq_len) int32.

    Positions count from the start of each attention segment. Labels are the ids, unshifted, and
    -100 on padding, on the first token of every attention segment (but not where
    `limit_context` cut one) and where the mask says so.
    """
    slots, seq_len = len(packed.tokens), packed.seq_len
    wide = np.empty((3, slots // seq_len, seq_len), dtype=np.int64)
    document_ids = np.empty((slots // seq_len, seq_len), dtype=np.int32)
    mask = packed.loss_mask
    _derive(
        packed.tokens, packed.boundaries, packed.piece, packed.cu_seqlens,
        _NO_MASK if mask is None else mask, mask is not None,
        wide.reshape(3, slots), document_ids.reshape(slots),
    )  # fmt: skip
    ends = packed.cu_seqlens if packed.uncut is None else packed.uncut
    wide[2].reshape(slots)[ends[:-1]] = -100
    return wide, document_ids


@kernel
def _derive(
    tokens: NDArray[np.generic],
    boundaries: NDArray[np.int32],
    piece: NDArray[np.int32],
    cu_seqlens: NDArray[np.int32],
    mask: NDArray[np.bool_],
    has_mask: bool,
    wide: NDArray[np.int64],
    document_ids: NDArray[np.int32],
) -> None:
    """One pass over the slots; segments' first slots get a label, which is removed afterwards."""
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
            elif has_mask:
                counts = mask[begin:end]
                for k in range(len(held)):
                    labels[k] = np.int64(held[k]) if counts[k] else np.int64(-100)
            else:
                for k in range(len(held)):
                    labels[k] = held[k]
            run += 1
