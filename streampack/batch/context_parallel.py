"""context_parallel: the part of a batch that one rank of a context-parallel group holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from streampack.arguments import one_of
from streampack.batch.padded_segments import (
    PaddedSegments,
    are_padding,
    held_slots,
    padded_segments,
)
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch

Layout = Literal["zigzag", "contiguous", "ulysses"]


def context_parallel(
    batch: PackedBatch, layout: Layout, *, cp_size: int, cp_rank: int
) -> dict[str, Any]:
    """The part of the batch that a rank of a context-parallel group holds.

    (1, T / cp_size) int64 `input_ids`, `position_ids` and `shift_labels` (each slot's is the
    next token, -100 where no loss is taken); `slots`, (T / cp_size,) int64, which slots of the
    flattened rows they are, by which fields and outputs go there and back; `cu_seqlens`, int32,
    and `max_seqlen` as the attention of the layout takes them. All ranks together hold every
    slot once.

    Args:
        layout: "zigzag" for ring attention: the head and the tail of every document, so that
            the work of causal attention is even; "contiguous" for ring attention too: rank r
            holds the r-th part of every document. The boundaries of both are those of the
            parts. "ulysses": rank r holds the r-th part of the flattened rows, and the
            boundaries are those of the whole batch, since attention sees all of it, for some
            of the heads.
        cp_size: ranks of the group, which all pass the same batch.
        cp_rank: which of them this is.

    Raises:
        ConfigError: documents were not packed with `align` a multiple of ``2 * cp_size`` for
            "zigzag", of `cp_size` for "contiguous"; there is no such rank or layout.
    """
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


def segments_of(batch: PackedBatch, align: int) -> PaddedSegments:
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
