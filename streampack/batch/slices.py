"""Slices of the attention mask in the form of MagiAttention.

A slice is a range of queries, a range of keys and a type. Its "causal" aligns the last query with
the last key. Slices of a batch do not overlap, as MagiAttention requires of their areas, and every
slot is a query of at least one of them.

A tree has at most two slices per node, however deep it is: the node's slots see themselves
causally, and the slots of its descendants, which follow it directly, see all of it. Queries of
different slices therefore overlap, although their areas do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from streampack.batch.tree_nodes import nodes_of

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch
    from streampack.batch.tree_batch import TreeBatch

_FULL, _CAUSAL = 0, 1  # the values of MagiAttention's `attn_type_map`


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
    return _arguments(ranges, ranges, torch.full_like(ranges[:, 0], _CAUSAL))


def of_trees(batch: TreeBatch) -> dict[str, Tensor]:
    """Return the mask of trees as arguments of MagiAttention; see `magi`.

    There is a causal slice per node, and a full slice per node with descendants: their slots see
    all slots of the node. Ranges of queries overlap, so `disable_fwd_atomic_reduction` of
    `flex_flash_attn_func` must stay False.
    """
    ends = nodes_of(batch).cu_seqlens_q
    nodes = torch.stack((ends[:-1], ends[1:]), dim=1)
    row = ends[:-1] // batch.seq_len * batch.seq_len
    last = batch.tout.view(-1)[ends[:-1].long()] + row
    below = torch.stack((nodes[:, 1], last.int()), dim=1)
    parents = below[:, 0] < below[:, 1]
    types = torch.full_like(ends[:-1], _CAUSAL), torch.full_like(below[parents, 0], _FULL)
    return _arguments(
        torch.cat((nodes, below[parents])), torch.cat((nodes, nodes[parents])), torch.cat(types)
    )


def _arguments(q_ranges: Tensor, k_ranges: Tensor, types: Tensor) -> dict[str, Tensor]:
    return {"q_ranges": q_ranges, "k_ranges": k_ranges, "attn_type_map": types}
