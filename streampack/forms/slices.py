"""Slices of the attention mask in the form of MagiAttention.

A slice is a range of queries, a range of keys and a type. Its "causal" aligns the last query with
the last key. Slices of a batch do not overlap, as MagiAttention requires of their areas, and every
slot is a query of at least one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch

FULL, CAUSAL = 0, 1  # the values of MagiAttention's `attn_type_map`


def magi(batch: PackedBatch) -> dict[str, Tensor]:
    """Return the mask as arguments of MagiAttention's `flex_flash_attn_func`.

    There is one causal slice per attention segment, padding included. The result has `q_ranges` and
    `k_ranges`, (n, 2) int32, begin and end of the ranges in the flattened rows, and
    `attn_type_map`, (n,) int32, 0 for full and 1 for causal. The tensors of q, k and v are
    (rows * seq_len, heads, head_dim).

    For `magi_attn_flex_key`, which distributes attention over a context-parallel group, pass
    ``AttnRanges.from_ranges(ranges.tolist())``, and as `attn_mask_type` ``"full"`` or ``"causal"``
    for each slice. All ranks pass the whole batch, because MagiAttention divides it itself.
    """
    ranges = torch.stack((batch.cu_seqlens[:-1], batch.cu_seqlens[1:]), dim=1)
    return arguments_of(ranges, ranges, torch.full_like(ranges[:, 0], CAUSAL))


def arguments_of(q_ranges: Tensor, k_ranges: Tensor, types: Tensor) -> dict[str, Tensor]:
    """Name the ranges and types of slices as MagiAttention does."""
    return {"q_ranges": q_ranges, "k_ranges": k_ranges, "attn_type_map": types}
