"""Staging: all tensors of a batch in one buffer, so that a batch is one copy to a device.

A small copy costs a launch and a DMA set-up whatever its size, and memory is page-locked block by
block. So the arrays that travel lie one after the other in one buffer of bytes, and what the
consumer sees are views of it, before the copy and after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

_ALIGN = 64  # bytes; more than any dtype needs, and a cache line


class _Place(NamedTuple):
    start: int
    stop: int
    dtype: torch.dtype


class Staged(NamedTuple):
    """One-dimensional tensors in one buffer.

    Attributes:
        buffer: (bytes,) uint8, on any device.
        places: where each tensor lies in it, by name.
    """

    buffer: Tensor
    places: Mapping[str, _Place]

    def views(self) -> dict[str, Tensor]:
        """The tensors, as views of the buffer."""
        return {
            name: self.buffer[place.start : place.stop].view(place.dtype)
            for name, place in self.places.items()
        }


def stage(tensors: Mapping[str, Tensor], *, pin: bool) -> Staged:
    """Copy one-dimensional tensors on the host into one buffer, page-locked if `pin`."""
    places: dict[str, _Place] = {}
    end = 0
    for name, tensor in tensors.items():
        start = -(-end // _ALIGN) * _ALIGN
        end = start + tensor.nbytes
        places[name] = _Place(start, end, tensor.dtype)
    # Torch keeps page-locked blocks that were freed, and hands them out again once the copies
    # from them are over.
    staged = Staged(torch.empty(end, dtype=torch.uint8, pin_memory=pin), places)
    for name, view in staged.views().items():
        view.copy_(tensors[name])
    return staged
