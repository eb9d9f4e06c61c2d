"""Line: the shards of one epoch laid end to end, which lanes divide among them.

A shard takes as much of the line as it weighs. A piece is a part of one shard; the document whose
beginning lies in it belongs to it, so a line can be cut anywhere. The order of the shards is worked
out once per process (12 bytes per shard, 20 milliseconds for a million of them); a part of the line
is two numbers into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.ragged import offsets_of
from streampack.packing.rng import permutation
from streampack.reading.manifest import Manifest

#: (shard, low, high): of the shard's weight.
Piece = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The shards of one epoch in reading order; those that weigh nothing are left out.

    Attributes:
        shards: (K,) int32, their numbers.
        bounds: (K + 1,) int64, the weight before each.
    """

    shards: NDArray[np.int32]
    bounds: NDArray[np.int64]

    @classmethod
    def of(cls, manifest: Manifest, seed: int | None) -> Line:
        """The line that the seed of an epoch gives; in the order of the manifest for None."""
        count = len(manifest)
        shards = np.arange(count, dtype=np.int32)
        if seed is not None:
            shards = permutation(count, seed).astype(np.int32)
        shards = shards[manifest.weights[shards] > 0]
        return cls(shards, offsets_of(manifest.weights[shards]))

    def pieces(self, low: int, high: int) -> Pieces:
        """The pieces of [low, high) of the line; each is worked out when it is asked for."""
        first = int(np.searchsorted(self.bounds, low, side="right")) - 1
        end = int(np.searchsorted(self.bounds, high, side="left"))
        return Pieces(self, low, high, first, end - first if low < high else 0)


@dataclass(frozen=True, slots=True)
class Pieces(Sequence[Piece]):
    """Consecutive shards, the first and last of them in part.

    Attributes:
        first: the place of the first shard in the line.
        num_shards: how many there are.
    """

    line: Line
    low: int
    high: int
    first: int
    num_shards: int

    def __len__(self) -> int:
        return self.num_shards

    def __getitem__(self, k: Any) -> Any:
        if not 0 <= k < self.num_shards:
            raise IndexError(k)
        place = self.first + k
        start, stop = (int(bound) for bound in self.line.bounds[place : place + 2])
        shard = int(self.line.shards[place])
        return shard, max(start, self.low) - start, min(stop, self.high) - start

    def weight(self, k: int) -> int:
        """Of piece number k and those after it."""
        if k >= self.num_shards:
            return 0
        return self.high - max(int(self.line.bounds[self.first + k]), self.low)
