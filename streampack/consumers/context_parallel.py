"""context_parallel: the part of a batch that one rank of a context-parallel group holds."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from streampack.arguments import one_of
from streampack.consumers.padded_segments import (
    PaddedSegments,
    are_padding,
    held_slots,
    padded_segments,
)
from streampack.errors import ConfigError

Layout = Literal["zigzag", "contiguous", "ulysses"]


def context_parallel(batch: Any, layout: Layout, cp_size: int, cp_rank: int) -> dict[str, Any]:
    """See `KernelBoundaries.context_parallel`."""
    one_of("layout", layout, get_args(Layout), "It says which tokens a rank holds.")
    check_rank(cp_size, cp_rank)
    if layout == "ulysses":
        held = _cut(batch.rows * batch.seq_len, cp_size, cp_rank)
        cu_seqlens, longest = batch.cu_seqlens, batch.max_seqlen
    else:
        zigzag = layout == "zigzag" and cp_size > 1
        ends = segments_of(batch, cp_size * (1 + zigzag)).cu_seqlens_padded
        held = held_slots(ends, cp_size, cp_rank, zigzag=zigzag)
        local = ends // np.int32(cp_size)
        longest = int(np.diff(local).max())
        cu_seqlens = torch.from_numpy(local).to(batch.device, non_blocking=True)
    slots = torch.from_numpy(held).to(batch.device, non_blocking=True)
    tensors = {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "shift_labels": batch.next_tokens(),
    }
    shards = {name: tensor.view(-1)[slots].view(1, -1) for name, tensor in tensors.items()}
    return {**shards, "slots": slots, "cu_seqlens": cu_seqlens, "max_seqlen": longest}


def segments_of(batch: Any, align: int) -> PaddedSegments:
    """The attention segments of a batch, each with padding to a multiple of `align`."""
    return padded_segments(batch._runs[0], are_padding(*batch._runs), align)


def check_rank(cp_size: int, cp_rank: int = 0) -> None:
    """Raise `ConfigError` unless there is such a rank."""
    if not 0 <= cp_rank < cp_size:
        raise ConfigError(
            f"cp_size is {cp_size}, and cp_rank is {cp_rank}.",
            "There is no such rank, and it would get other documents' tokens.",
            "Use a cp_size of 1 or more, and a cp_rank from 0 to cp_size - 1.",
        )


def _cut(slots: int, cp_size: int, cp_rank: int) -> NDArray[np.int64]:
    """(slots / cp_size,) int64: the slots of a rank, whatever lies in them."""
    part, rest = divmod(slots, cp_size)
    if rest:
        raise ConfigError(
            f"The batch has {slots} slots, and cp_size is {cp_size}.",
            "They cannot be split evenly over the ranks.",
            "Pass a seq_len that is a multiple of cp_size.",
        )
    return np.arange(cp_rank * part, (cp_rank + 1) * part)
