"""limit_context: attention that reaches back a given number of tokens.

An attention segment ends wherever a row reaches a multiple of the limit, and where it ends anyway.
Rows, tokens, labels and so the loss are as before: the first token of a window is still predicted,
from the last one of the window before it, which saw that window. Positions count from the start of
every window, because many consumers read the boundaries off them. For rotary positions only
distances matter, which are the same.

Cost: some numpy calls on the boundaries, and a copy of them to the batch's device. Attention costs
at most the limit per token instead of the length of its document.

Source: T. Zhu et al., "SkyLadder: Better and Faster Pretraining via Context Window Scheduling"
(2025), with its released code, whose windows lie at multiples from the beginning of the row too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from streampack.arguments import whole_number
from streampack.batch.padded_segments import are_padding

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch


def limit_context(batch: PackedBatch, tokens: int) -> PackedBatch:
    """The batch with attention segments of at most `tokens` tokens, on the same device.

    Segments are also cut at every multiple of `tokens` from the beginning of a row. Ids, labels,
    `next_tokens` and documents stay as they are; all forms of the batch follow the segments.

    Args:
        tokens: as a function of the batch's number for a schedule, in the `transform` of a loader.
            A multiple of the packer's `align` keeps segments divisible over context-parallel ranks.

    Raises:
        ConfigError: `tokens` is no whole number of at least one.
    """
    tokens = whole_number("tokens", tokens, "A window holds at least one.")
    if tokens >= batch.seq_len:
        return batch
    ends, boundaries, piece = batch._runs
    rows = np.arange(0, batch.rows * batch.seq_len, batch.seq_len)
    places = rows[:, None] + np.arange(0, batch.seq_len, tokens)
    ends = np.union1d(ends, places).astype(np.int32)
    # Runs are cut as well, so that a segment begins where a run does.
    cut = np.union1d(boundaries, places).astype(np.int32)
    piece = piece[np.searchsorted(boundaries, cut[:-1], side="right") - 1]
    lengths = np.diff(ends).astype(np.int64)
    real = lengths[~are_padding(ends, cut, piece)]
    arrays: dict[str, Any] = {"cu_seqlens": ends, "boundaries": cut, "piece": piece}
    counts: dict[str, Any] = {
        "max_seqlen": int(lengths.max()),
        "sum_squared_lengths": int((real**2).sum()),
    }
    packed, compact = batch._packed, None
    if packed is not None:
        uncut = packed.cu_seqlens if packed.uncut is None else packed.uncut
        packed = packed._replace(uncut=uncut, **arrays, **counts)
    else:
        on_device = {
            name: torch.from_numpy(array).to(batch.device, non_blocking=True)
            for name, array in arrays.items()
        }
        compact = {"uncut": batch.cu_seqlens, **batch._tensors, **on_device}
    return batch._with(
        _packed=packed,
        _compact=compact,
        _staged=None,
        _fields=None,
        _runs=(ends, cut, piece),
        num_segments=len(lengths),
        **counts,
    )
