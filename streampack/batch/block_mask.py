"""FlexAttention's block mask of packed segments, made without a T x T matrix.

Inside a block of queries the segments of its first and last token say everything: keys before the
first one's start are masked, and a whole block of keys is visible to all queries if it lies after
the last one's start. So a few operations on (T / block_size,) numbers replace the evaluation of
the mask at every pair, on any device and without waiting for it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask


def segment_block_mask(cu_seqlens: Tensor, slots: int, block_size: int) -> BlockMask:
    """Causal attention inside segments.

    Args:
        cu_seqlens: (segments + 1,) int32; entries equal to the last one may follow it.
        slots: T, tokens in the batch.
        block_size: tokens per block, of queries and of keys.

    Returns:
        A mask of shape (1, 1, T, T).
    """
    device = cu_seqlens.device
    token = torch.arange(slots, device=device, dtype=torch.int32)
    segment = torch.searchsorted(cu_seqlens, token, right=True, out_int32=True) - 1
    start = cu_seqlens[segment]
    blocks = -(-slots // block_size)
    block = torch.arange(blocks, device=device, dtype=torch.int32)
    last = torch.clamp((block + 1) * block_size, max=slots) - 1
    lowest = start[block * block_size] // block_size
    # Keys of block j are visible to the whole block i of queries if j is before i and begins in
    # the segment of i's last token.
    lowest_full = torch.minimum((start[last] + block_size - 1) // block_size, block)
    partial = lowest_full - lowest + 1  # [lowest, lowest_full) and the diagonal
    column = block[None, :]
    indices = torch.where(column < (partial - 1)[:, None], lowest[:, None] + column, block[:, None])
    full = block - lowest_full
    full_indices = lowest_full[:, None] + column
    inside, inside_full = column < partial[:, None], column < full[:, None]

    def same_segment(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (segment[query] == segment[key])

    return BlockMask.from_kv_blocks(
        partial[None, None],
        torch.where(inside, indices, 0)[None, None],
        full[None, None],
        torch.where(inside_full, full_indices, 0)[None, None],
        BLOCK_SIZE=block_size,
        mask_mod=same_segment,
        seq_lengths=(slots, slots),
    )
