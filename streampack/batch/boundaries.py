"""Where a packed batch's documents end, as each attention or scan takes it.

All of it is views of the batch's tensors and a few tensor operations on its device; nothing here
waits for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from streampack.arguments import one_of, whole_number
from streampack.batch.block_mask import segment_block_mask
from streampack.batch.padded_segments import are_padding, pad_cu_seqlens
from streampack.batch.tensors import label_positions

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch


def varlen(
    batch: PackedBatch,
    api: Literal["flash_attn", "torch", "torchtitan"] = "flash_attn",
    *,
    segments: int | None = None,
) -> dict[str, Any]:
    """Sequence arguments for variable-length attention, to be passed by keyword.

    Args:
        api: "flash_attn" for `flash_attn_varlen_func` (add ``causal=True``), "torch" for
            `torch.nn.attention.varlen.varlen_attn` (add ``window_size=(-1, 0)``, which is
            how it spells causal), "torchtitan" for the fields of its `VarlenMetadata`, which
            besides has the boundaries as a tuple of ints.
        segments: give the arguments static shapes, for `torch.compile` and CUDA graphs:
            `cu_seqlens` has `segments` + 1 entries, padded with its last value, and the
            maximum is `seq_len`. The true number is `num_segments`.

    Raises:
        ConfigError: the batch has more than `segments`; `api` is unknown.
    """
    cu_seqlens, longest = static_segments(batch, segments)
    known = ("flash_attn", "torch", "torchtitan")
    one_of("api", api, known, "The names of its arguments are unknown.")
    names = ("cu_seq_q", "cu_seq_k", "max_q", "max_k")
    if api == "flash_attn":
        names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    arguments = dict(zip(names, (cu_seqlens, cu_seqlens, longest, longest), strict=True))
    if api == "torchtitan":
        ends = batch._runs[0].tolist()
        arguments["cu_seq_q_host"] = tuple(ends + ends[-1:] * (len(cu_seqlens) - len(ends)))
    return arguments


def fla(batch: PackedBatch, *, chunk_size: int | None = None) -> dict[str, Tensor]:
    """Boundaries for linear attention, delta rules and short convolutions of fla.

    Kernels of flash-linear-attention take them with (1, T, ...) tensors: `cu_seqlens`,
    (segments + 1,) int64 on the batch's device, and `cu_seqlens_cpu`, the same on the host, so
    that they need not wait for the device. Pass the same dictionary to all layers: fla keeps
    what it derives by the identity of these tensors.

    Args:
        chunk_size: tokens per chunk of a kernel: also give `chunk_indices`, (chunks, 2) int64
            on the device, the segment of each chunk and the chunk's number in it.

    Raises:
        ConfigError: `chunk_size` is no whole number of at least one.
    """
    ends = batch._runs[0].astype(np.int64)
    arguments = {"cu_seqlens": batch.cu_seqlens.long(), "cu_seqlens_cpu": torch.from_numpy(ends)}
    if chunk_size is not None:
        chunk_size = whole_number("chunk_size", chunk_size, "A chunk holds at least one token.")
        chunks = -(-np.diff(ends) // chunk_size)
        segment = np.repeat(np.arange(len(chunks)), chunks)
        inside = np.arange(len(segment)) - (np.cumsum(chunks) - chunks)[segment]
        indices = torch.from_numpy(np.stack((segment, inside), axis=1))
        arguments["chunk_indices"] = indices.to(batch.device, non_blocking=True)
    return arguments


def next_tokens(batch: PackedBatch, depth: int = 1) -> Tensor:
    """Targets of multi-token prediction: what comes `depth` tokens later.

    (rows, seq_len) int64, shifted: compare them with what slot t predicts, without shifting.
    -100 where that lies beyond the attention segment (as it is without `limit_context`), or
    carries no loss.

    Args:
        depth: 1 is the next token.

    Raises:
        ConfigError: `depth` is no whole number of at least one.
    """
    depth = whole_number("depth", depth, "The next token is 1 later.")
    slots = batch.rows * batch.seq_len
    inside = label_positions(batch._tensors, slots) >= depth
    labels = batch.labels.view(-1).masked_fill(~inside, -100)
    return pad(labels[depth:], (0, min(depth, slots)), value=-100).view(batch.rows, batch.seq_len)


def flex(batch: PackedBatch, block_size: int = 128) -> BlockMask:
    """The block mask for `flex_attention` over the flattened rows, (1, 1, T, T).

    Causal inside attention segments. Made in a time that grows with ``(T / block_size)**2``,
    without a T x T matrix; its shapes depend on T alone.
    """
    return segment_block_mask(batch.cu_seqlens, batch.rows * batch.seq_len, block_size)


def static_segments(batch: PackedBatch, segments: int | None) -> tuple[Tensor, int]:
    """`cu_seqlens` and its maximum, of static shape if a number of segments is given."""
    if segments is None:
        return batch.cu_seqlens, batch.max_seqlen
    slots = batch.rows * batch.seq_len
    return pad_cu_seqlens(batch.cu_seqlens, segments, slots), batch.seq_len


def segment_ids(batch: PackedBatch) -> Tensor:
    """(T,) int32, each slot's attention segment."""
    slots = batch.rows * batch.seq_len
    number = torch.arange(batch.num_segments, dtype=torch.int32, device=batch.device)
    return number.repeat_interleave(batch.cu_seqlens.diff(), output_size=slots)


def one_segment_per_row(batch: PackedBatch) -> bool:
    """Whether no row has two segments that are not padding."""
    filled = batch._runs[0][:-1][~are_padding(*batch._runs)]
    return bool((np.diff(filled // batch.seq_len) > 0).all())
