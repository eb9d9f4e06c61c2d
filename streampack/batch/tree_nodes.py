"""Nodes of trees and their paths, for kernels that take these instead of a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from streampack.batch.tree_batch import TreeBatch


class TreeNodes(NamedTuple):
    """The M nodes of a batch of trees, in the order of the flattened rows.

    A node is a run of slots that the same sequences pass; where one ends, a node ends. It sees its
    path, the nodes from the root of its tree to itself, of which the last one causally. A run of
    padding is a node too. Nodes come after their parents.

    Attributes:
        cu_seqlens_q: (M + 1,) int32, 0 and the ends of the nodes in the flattened rows.
        cu_seqlens_k: (M + 1,) int32, 0 and the ends of the paths in `kv_index`.
        kv_index: (K,) int64, slots of the paths, one path after the other.
        parents: (M,) int64, number of the node before it on its path; -1 for a root.
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
    """The nodes of a batch; see `TreeNodes`.

    Cost: a few tensor operations over the slots, the sequences' tokens and the paths.
    """
    number = torch.arange(batch.rows * batch.seq_len, device=batch.device)
    slot, source, depth = batch.slot, batch.source, batch.position_ids.view(-1)
    tree = batch.document_ids.view(-1)
    before = torch.where(tree < 0, number - 1, -1).scatter(0, slot, source)
    edge = batch._tensors["boundaries"][:-1].long()
    before[edge] = -1
    # A node begins where another one goes on, and behind the last slot of one of them.
    begins = before != number - 1
    followers = torch.bincount(before + 1, minlength=len(number) + 1)[1:]
    begins[1:] |= followers[:-1] != 1
    ended = torch.zeros(len(number) + 1, dtype=torch.bool, device=slot.device)
    ended[slot[batch._tensors["ends"][1:].long() - 1] + 1] = True
    begins |= ended[:-1]
    begins[edge] = True
    start = begins.nonzero().flatten()
    node = begins.cumsum(0) - 1
    stop = torch.cat([start[1:], start.new_tensor([len(number)])])
    above = before[start]
    parents = torch.where(above < 0, -1, node[above])
    # Any token of a sequence that passes the last slot leads to its path; padding is its own.
    passing = torch.cat([slot, number])
    at = (number + len(slot)).scatter(0, slot, torch.arange(len(slot), device=slot.device))
    size = torch.where(tree[start] < 0, stop - start, depth[stop - 1] + 1)
    ends = torch.cat([size.new_zeros(1), size.cumsum(0)])
    first = at[stop - 1] + 1 - size
    offset = (first - ends[:-1]).repeat_interleave(size)
    kv_index = passing[offset + torch.arange(len(offset), device=slot.device)]
    own = torch.cat([start, stop[-1:]])
    longest = (stop - start).max(), size.max()
    return TreeNodes(own.int(), ends.int(), kv_index, parents, *map(int, longest))
