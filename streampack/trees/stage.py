"""Block stage of runs with `layout="tree"`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampack.documents.blocks import Documents
from streampack.stages.base import Place
from streampack.trees.build import planted


@dataclass(frozen=True, slots=True)
class Planted:
    """Block stage that converts groups to trees; reports records with faults to `skips`."""

    def describe(self) -> Mapping[str, Any]:
        return {"layout": "tree"}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        if not len(documents):
            return documents
        trees, faults = planted(documents)
        if not faults:
            return trees
        assert trees.members is not None
        groups = np.searchsorted(trees.members.offsets, [*faults], side="right") - 1
        # One fault is reported per record.
        broken = dict(zip(groups.tolist(), faults.values(), strict=True))
        for i, fault in broken.items():
            shard, index = int(trees.origin["shard"][i]), int(trees.origin["index"][i])
            place.skips.handle(place.source.broken_document(shard, index, fault))
        return trees.take(np.setdiff1d(np.arange(len(trees)), [*broken]))
