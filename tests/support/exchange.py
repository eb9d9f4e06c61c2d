"""Slots of all ranks of a job, and of a rank, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Gathered(torch.autograd.Function):
    """The slots of all ranks, one rank after the other; all ranks have equally many."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return own_part(gradient)


class OwnPart(torch.autograd.Function):
    """A rank's own slots of the sum over ranks of their partial results for all slots."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor) -> Tensor:
        return own_part(partial)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return Gathered.apply(gradient)


def own_part(of_all: Tensor) -> Tensor:
    total = of_all.clone()
    dist.all_reduce(total)
    return total.chunk(dist.get_world_size())[dist.get_rank()]
