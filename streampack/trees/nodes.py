"""Nodes and paths of trees, for kernels that take them instead of a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from streampack.trees.batch import TreeBatch


class TreeNodes(NamedTuple):
    """The M nodes of a batch of trees, in the order of the flattened rows.

    A node is a run of slots that belong to the same sequences; it also ends where a sequence ends.
    A node sees its path, the nodes from the root of its tree to itself, and itself causally. A run
    of padding is a node too. Nodes come after their parents.

    Attributes:
        cu_seqlens_q: (M + 1,) int32, 0 and the ends of the nodes in the flattened rows.
        cu_seqlens_k: (M + 1,) int32, 0 and the ends of the paths in `kv_index`.
        kv_index: (K,) int64, slots of the paths, one path after the other.
        parents: (M,) int64, index of the previous node on the path; -1 for a root.
        max_seqlen_q: slots of the longest node.
        max_seqlen_k: slots of the longest path.
    """

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    kv_index: Tensor
    parents: Tensor
    max_seqlen_q: int
    max_seqlen_k: int


def nodes_of(batch: TreeBatch) -> TreeNodes:
    """Compute the nodes of a batch by tensor operations over slots, sequence tokens and paths."""
    number = torch.arange(batch.rows * batch.seq_len, device=batch.device)
    slot, source, depth = batch.slot, batch.source, batch.position_ids.view(-1)
    tree = batch.document_ids.view(-1)
    before = torch.where(tree < 0, number - 1, -1).scatter(0, slot, source)
    edge = batch._tensors["boundaries"][:-1].long()
    before[edge] = -1
    # A node begins at a branch, and after the last slot of a sequence.
    begins = before != number - 1
    followers = torch.bincount(before + 1, minlength=len(number) + 1)[1:]
    begins[1:] |= followers[:-1] != 1
    ended = torch.zeros(len(number) + 1, dtype=torch.bool, device=slot.device)
    ended[slot[batch._tensors["tree ends"][1:].long() - 1] + 1] = True
    begins |= ended[:-1]
    begins[edge] = True
    start = begins.nonzero().flatten()
    node = begins.cumsum(0) - 1
    stop = torch.cat([start[1:], start.new_tensor([len(number)])])
    above = before[start]
    parents = torch.where(above < 0, -1, node[above])
    # Any sequence through a node's last slot contains the node's path; padding is its own path.
    passing = torch.cat([slot, number])
    at = (number + len(slot)).scatter(0, slot, torch.arange(len(slot), device=slot.device))
    size = torch.where(tree[start] < 0, stop - start, depth[stop - 1] + 1)
    ends = torch.cat([size.new_zeros(1), size.cumsum(0)])
    first = at[stop - 1] + 1 - size
    offset = (first - ends[:-1]).repeat_interleave(size)
    kv_index = passing[offset + torch.arange(len(offset), device=slot.device)]
    bounds = torch.cat([start, stop[-1:]])
    longest = (stop - start).max(), size.max()
    return TreeNodes(bounds.int(), ends.int(), kv_index, parents, *map(int, longest))
