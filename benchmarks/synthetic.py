"""A source of any length that costs nothing to read: it shows a lane's own cost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, make_origin
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.manifest import Manifest
from streampack.sources.sharded import ShardedSource

__all__ = ["Synthetic"]

SHARDS = 1024


class Synthetic(ShardedSource):
    """Repeats documents of the same lengths, views of one array, for at least so many tokens.

    Args:
        lengths: (N,) int64, tokens of the documents that are repeated.
        tokens: of an epoch, about a tenth less than there are.
        shards: number of shards, each with `shard_documents` documents if given (`tokens` is
            ignored then).
    """

    tokenized = True

    def __init__(
        self,
        lengths: NDArray[np.int64],
        tokens: int = 0,
        *,
        shards: int = SHARDS,
        shard_documents: int | None = None,
    ) -> None:
        super().__init__()
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.tokens = np.arange(self.offsets[-1]).astype(np.uint16)
        self.mean = float(lengths.mean())
        # Shards of different length begin at different places of the lengths: a tenth more.
        self.shards = shards
        self.each = shard_documents or int(1.1 * tokens / self.mean / shards) + len(lengths)

    def list_shards(self) -> Manifest:
        """Return shards with as many documents in each."""
        documents = np.full(self.shards, self.each, dtype=np.int64)
        return Manifest(
            paths=tuple(f"synthetic-{i}" for i in range(self.shards)),
            weights=documents,
            num_bytes=(documents * self.mean * 4).astype(np.int64),
        )

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: ErrorPolicy
    ) -> Iterator[tuple[Documents, int, int]]:
        """Views, no copies."""
        whole = len(self.offsets) - 1
        start, stop = low if position is None else position, high
        while start < stop:
            first = start % whole
            end = min(start + self.reading.documents_per_block, stop, start + whole - first)
            origin = make_origin(shard, np.arange(start, end, dtype=np.int64))
            offsets = self.offsets[first : first + end - start + 1]
            yield Documents(self.tokens, offsets, origin), end, end
            start = end
