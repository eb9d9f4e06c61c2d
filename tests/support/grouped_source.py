"""A source in memory whose documents have the numbers of their groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from streampack.documents.blocks import Documents
from streampack.reading.skips import Skips
from tests.support.memory_source import MemorySource, numbered_documents


class GroupedSource(MemorySource):
    """Shards of documents with a field "group", and a field "number" that counts them all.

    Args:
        groups: of every shard, the value of each document.
        lengths: of all documents; 3 tokens each if not given. Every token is another one.
        reading: for `Reading`.
    """

    def __init__(
        self, groups: Sequence[Sequence[int]], lengths: Sequence[int] | None = None, **reading: int
    ) -> None:
        counts = [len(shard) for shard in groups]
        self.first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        documents = numbered_documents([3] * sum(counts) if lengths is None else lengths)
        bounds = zip(self.first[:-1], self.first[1:], strict=True)
        super().__init__([documents[low:high] for low, high in bounds], **reading)
        self.groups = groups
        self.documents = documents

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: Skips
    ) -> Iterator[tuple[Documents, int, int]]:
        for block, end, reached in super().read_shard(shard, low, high, position, skips):
            index = block.origin["index"]
            value = np.array(self.groups[shard], dtype=np.int64)[index]
            fields = {"group": value, "number": self.first[shard] + index}
            yield replace(block, document_fields=fields), end, reached

    @property
    def whole(self) -> list[list[int]]:
        """The numbers of the documents of each group, in order."""
        runs: list[list[int]] = []
        for shard, values in enumerate(self.groups):
            for k, value in enumerate(values):
                if k == 0 or value != values[k - 1]:
                    runs.append([])
                runs[-1].append(int(self.first[shard]) + k)
        return runs
