"""Slices of the attention mask of trees, in the form of MagiAttention.

A tree has at most two slices per node, however deep it is: the node's slots see themselves
causally, and the slots of its descendants, which follow it directly, see all of it. Queries of
different slices therefore overlap, although their areas do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from streampack.forms.slices import CAUSAL, FULL, arguments_of
from streampack.trees.nodes import nodes_of

if TYPE_CHECKING:
    from streampack.trees.batch import TreeBatch


def of_trees(batch: TreeBatch) -> dict[str, Tensor]:
    """Return the mask of trees as arguments of MagiAttention; see `forms.slices.magi`.

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
    types = torch.full_like(ends[:-1], CAUSAL), torch.full_like(below[parents, 0], FULL)
    return arguments_of(
        torch.cat((nodes, below[parents])), torch.cat((nodes, nodes[parents])), torch.cat(types)
    )
