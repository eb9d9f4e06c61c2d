"""Stages of runs whose records have several documents that stay together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampack.documents.blocks import Documents, joined_groups
from streampack.stages.base import Place


@dataclass(frozen=True, slots=True)
class Together:
    """Documents side by side that have one origin become a group: one document of the window.

    What the window, packers and states see is its length. A group is what is left of its record.
    """

    def describe(self) -> Mapping[str, Any]:
        return {"grouped": True}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        if not len(documents):
            return documents
        shard, index = (documents.origin[name] for name in ("shard", "index"))
        begins = np.flatnonzero((shard[1:] != shard[:-1]) | (index[1:] != index[:-1])) + 1
        return joined_groups(documents, np.concatenate([[0], begins, [len(documents)]]))
