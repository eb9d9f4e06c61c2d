"""The part of a batch that a rank of a context-parallel group holds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from streampack.arguments import one_of, whole_number
from streampack.errors import ConfigError
from streampack.forms.attention import (
    PaddedSegments,
    are_padding,
    held_slots,
    padded_segments,
)

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch

Layout = Literal["zigzag", "contiguous", "ulysses"]


def context_parallel(
    batch: PackedBatch,
    layout: Layout,
    *,
    cp_size: int | None = None,
    cp_rank: int | None = None,
    multiple: int = 1,
) -> dict[str, Any]:
    """Return the part of the batch that a rank of a context-parallel group holds.

    The result has (1, T / cp_size) int64 `input_ids`, `position_ids` and `shift_labels` (the next
    token of each slot, -100 where it carries no loss) and bool `padding_mask`, True on padding;
    `slots`, (T / cp_size,) int64, the part's slots in the flattened rows, with which fields are
    gathered and outputs scattered; `cu_seqlens`, int32, and `max_seqlen` as the layout's attention
    takes them. The ranks together hold every slot once.

    Args:
        layout: "zigzag" for ring attention: the rank holds a head and a tail part of every
            document, which balances the work of causal attention. "contiguous", also for ring
            attention: rank r holds the r-th part of every document. In both, the boundaries are
            those within the part. "ulysses": rank r holds the r-th part of the flattened rows,
            with the boundaries of the whole batch, because attention sees all of it for a part of
            the heads.
        cp_size: size of the group; all its ranks pass the same batch. None means the batch's own.
        cp_rank: index of this rank in the group. None means the batch's own.
        multiple: require that a rank holds a multiple of this number of slots; see `megatron`.

    Raises:
        ConfigError: documents were not packed with an `align` that is a multiple of
            ``2 * cp_size`` for "zigzag" or of `cp_size` for "contiguous"; the rank or the layout
            does not exist; a rank does not hold a multiple of `multiple` slots.
    """
    one_of("layout", layout, get_args(Layout))
    cp_size, cp_rank = rank_of(batch, cp_size, cp_rank)
    require_multiple(batch, cp_size, multiple)
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
        "padding_mask": batch.padding_mask,
    }
    shards = {name: tensor.view(-1)[slots].view(1, -1) for name, tensor in tensors.items()}
    return {**shards, "slots": slots, "cu_seqlens": cu_seqlens, "max_seqlen": longest}


def segments_of(batch: PackedBatch, align: int) -> PaddedSegments:
    """Return the attention segments of a batch, each padded to a multiple of `align`."""
    return padded_segments(batch._runs[0], are_padding(*batch._runs), align)


def check_rank(cp_size: int, cp_rank: int = 0) -> None:
    """Raise `ConfigError` unless 0 <= `cp_rank` < `cp_size`."""
    if not 0 <= cp_rank < cp_size:
        raise ConfigError(
            f"cp_rank must be in the range 0 to cp_size - 1, got cp_rank={cp_rank} and "
            f"cp_size={cp_size}.",
            "Use a cp_size of at least 1, and a cp_rank from 0 to cp_size - 1.",
            setting="cp_size",
        )


def rank_of(batch: PackedBatch, cp_size: int | None, cp_rank: int | None) -> tuple[int, int]:
    """Return (cp_size, cp_rank), by default the batch's own; raises like `check_rank`."""
    cp_size = batch.cp_size if cp_size is None else cp_size
    cp_rank = batch.cp_rank if cp_rank is None else cp_rank
    check_rank(cp_size, cp_rank)
    return cp_size, cp_rank


def require_multiple(batch: PackedBatch, cp_size: int, multiple: int) -> None:
    """Raise `ConfigError`, with lengths that work, unless a rank holds a `multiple` of slots."""
    need = cp_size * whole_number("multiple", multiple)
    rows, seq_len = batch.rows, batch.seq_len
    if not rows * seq_len % need:
        return
    of_rows = need // math.gcd(need, seq_len)
    step = math.lcm(need // math.gcd(need, rows), 2 * cp_size if cp_size > 1 else 1)
    lengths = [str(n) for n in (seq_len // step * step, -(-seq_len // step) * step) if n]
    raise ConfigError(
        f"Each rank must hold a multiple of {multiple} slots, but {rows} rows of {seq_len} slots "
        f"over {cp_size} ranks are {rows * seq_len / cp_size:,g} each.",
        f"Use seq_len={' or '.join(dict.fromkeys(lengths))}, or a batch_size that is a multiple of "
        f"{of_rows}.",
        setting="multiple",
    )


def _cut(slots: int, cp_size: int, cp_rank: int) -> NDArray[np.int64]:
    """Return the contiguous slots of a rank, (slots / cp_size,) int64.

    Raises:
        ConfigError: the slots do not divide evenly.
    """
    part, remainder = divmod(slots, cp_size)
    if remainder:
        raise ConfigError(
            f"The {slots} slots of the batch must be a multiple of cp_size, which is {cp_size}.",
            "Pass a seq_len that is a multiple of cp_size.",
            setting="cp_size",
        )
    return np.arange(cp_rank * part, (cp_rank + 1) * part)
