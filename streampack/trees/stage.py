"""Block stage of runs with `layout="tree"`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, joined_groups, offsets_of, ranges_of
from streampack.sources.broken import broken_document
from streampack.stages.base import Place
from streampack.trees.build import planted


@dataclass(frozen=True, slots=True)
class Planted:
    """Block stage that converts groups to trees; reports records with faults to `skips`.

    Attributes:
        seq_len: slots above which a group becomes several trees, which its document then has as
            members; None makes one tree of every group.
    """

    seq_len: int | None = None

    def describe(self) -> Mapping[str, Any]:
        return {"layout": "tree"} | ({"divided": self.seq_len} if self.seq_len else {})

    def __call__(self, documents: Documents, place: Place) -> Documents:
        if not len(documents):
            return documents
        records = np.arange(len(documents) + 1)
        trees, faults = planted(documents)
        if self.seq_len is not None and trees.lengths.max() > self.seq_len:
            from streampack.trees.divided import divided

            parts, records = divided(documents, trees.lengths, self.seq_len)
            trees, faults = planted(parts)
        if not faults:
            return self._by_record(trees, records)
        assert trees.members is not None
        part = np.searchsorted(trees.members.offsets, [*faults], side="right") - 1
        record = np.searchsorted(records, part, side="right") - 1
        # One fault is reported per record.
        broken = dict(zip(record.tolist(), faults.values(), strict=True))
        for i, fault in broken.items():
            origin = trees.origin[records[i]]
            shard, index = int(origin["shard"]), int(origin["index"])
            place.skips.handle(broken_document(place.source, shard, index, fault))
        kept = np.setdiff1d(np.arange(len(records) - 1), [*broken])
        sizes = np.diff(records)[kept]
        return self._by_record(trees.take(ranges_of(records[kept], sizes)), offsets_of(sizes))

    def _by_record(self, trees: Documents, records: NDArray[np.int64]) -> Documents:
        """Return a document for each record (N,), from their offsets (N + 1,) into the trees."""
        return trees if self.seq_len is None else joined_groups(trees, records)
