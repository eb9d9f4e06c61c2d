"""Which pieces of which shards a lane reads, in which order.

The order of the shards in an epoch is worked out once per process and shared by its lanes (12 bytes
per shard, 20 milliseconds for a million of them); a lane is two numbers into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.packing.rng import permutation
from streampack.reading.manifest import Manifest

__all__ = ["EpochOrder", "Piece"]

#: (shard, start, stop), in the unit of the manifest.
Piece = tuple[int, int, int]

_END = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, eq=False)
class EpochOrder:
    """The shards of one epoch in reading order.

    Attributes:
        shards: (K,) int32, numbers of shards. Where lanes are cut by units, shards without any
            are left out.
        bounds: (K + 1,) int64, units before each; empty where shards are read whole.
    """

    shards: NDArray[np.int32]
    bounds: NDArray[np.int64]

    @classmethod
    def of(cls, manifest: Manifest, seed: int | None, *, whole: bool) -> EpochOrder:
        """The order that a seed gives; that of the manifest for None.

        Args:
            manifest: the shards.
            seed: of the epoch.
            whole: True if a lane reads whole shards, False if it reads a range of units.
        """
        count = len(manifest)
        shards = np.arange(count, dtype=np.int32)
        if seed is not None:
            shards = permutation(count, seed).astype(np.int32)
        if whole:
            return cls(shards, np.zeros(0, dtype=np.int64))
        shards = shards[manifest.units[shards] > 0]
        bounds = np.zeros(len(shards) + 1, dtype=np.int64)
        np.cumsum(manifest.units[shards], out=bounds[1:])
        return cls(shards, bounds)

    def pieces(self, lane: int, lanes: int) -> Sequence[Piece]:
        """What one of `lanes` lanes reads; each piece is worked out when it is asked for."""
        if not len(self.bounds):
            return _WholeShards(self.shards, lane, lanes)
        total = int(self.bounds[-1])
        return _UnitRange.of(self, lane * total // lanes, (lane + 1) * total // lanes)


@dataclass(frozen=True, slots=True)
class _WholeShards(Sequence[Piece]):
    """Every n-th shard, whole."""

    shards: NDArray[np.int32]
    lane: int
    lanes: int

    def __len__(self) -> int:
        return len(range(self.lane, len(self.shards), self.lanes))

    def __getitem__(self, k: Any) -> Any:
        return int(self.shards[self.lane + k * self.lanes]), 0, _END


@dataclass(frozen=True, slots=True)
class _UnitRange(Sequence[Piece]):
    """Units [low, high) of an epoch: consecutive shards, the first and last of them in part.

    Attributes:
        first: the place of the first shard in the order.
        num_shards: how many there are.
    """

    order: EpochOrder
    low: int
    high: int
    first: int
    num_shards: int

    @classmethod
    def of(cls, order: EpochOrder, low: int, high: int) -> _UnitRange:
        first = int(np.searchsorted(order.bounds, low, side="right")) - 1
        end = int(np.searchsorted(order.bounds, high, side="left"))
        return cls(order, low, high, first, end - first if low < high else 0)

    def __len__(self) -> int:
        return self.num_shards

    def __getitem__(self, k: Any) -> Any:
        if not 0 <= k < self.num_shards:
            raise IndexError(k)
        place = self.first + k
        start, stop = (int(bound) for bound in self.order.bounds[place : place + 2])
        shard = int(self.order.shards[place])
        return shard, max(start, self.low) - start, min(stop, self.high) - start
