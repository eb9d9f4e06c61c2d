"""A sharded source over arrays in memory, for tests of what lies above the formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents import Documents, make_origin
from streampack.reading.manifest import Manifest
from streampack.reading.options import Reading
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips


class MemorySource(ShardedSource):
    """Shards are lists of token arrays (and of masks, if given); the rest is for `Reading`.

    A document weighs one.
    """

    tokenized = True

    def __init__(
        self,
        shards: Sequence[Sequence[NDArray[np.generic]]],
        masks: Sequence[Sequence[NDArray[np.bool_]]] | None = None,
        **reading: int,
    ) -> None:
        super().__init__(reading=Reading(**reading))
        self.shards = shards
        self.masks = masks

    def list_shards(self) -> Manifest:
        return Manifest(
            paths=tuple(f"memory-{i}" for i in range(len(self.shards))),
            weights=np.array([len(shard) for shard in self.shards], dtype=np.int64),
            num_bytes=np.array([sum(map(len, s)) * 4 for s in self.shards], dtype=np.int64),
        )

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: Skips
    ) -> Iterator[tuple[Documents, int, int]]:
        start = low if position is None else position
        while start < high:
            end = min(start + self.reading.documents_per_block, high)
            masks = self.masks[shard][start:end] if self.masks is not None else None
            origin = make_origin(shard, np.arange(start, end, dtype=np.int64))
            yield Documents.from_arrays(self.shards[shard][start:end], origin, masks), end, end
            start = end


def numbered_documents(lengths: Sequence[int], dtype: Any = np.uint32) -> list[NDArray[np.generic]]:
    """Documents whose tokens are all different from one another, so that each can be traced."""
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return [np.arange(bounds[i], bounds[i + 1]).astype(dtype) for i in range(len(lengths))]


def heavy_tailed(count: int, seed: int, longest: int = 2000) -> list[int]:
    values = np.exp(np.random.default_rng(seed).normal(2.5, 1.2, count)).astype(int) + 1
    return np.minimum(values, longest).tolist()
