"""Block stage for records of several documents that stay together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampack.documents.blocks import Documents, joined_groups
from streampack.stages.base import Place


@dataclass(frozen=True, slots=True)
class Together:
    """Group adjacent documents of one origin into one document of the window.

    Window, packers and states use the length of the group. A group holds the documents of its
    record that earlier stages kept.
    """

    def describe(self) -> Mapping[str, Any]:
        return {"grouped": True}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        if not len(documents):
            return documents
        shard, index = (documents.origin[name] for name in ("shard", "index"))
        begins = np.flatnonzero((shard[1:] != shard[:-1]) | (index[1:] != index[:-1])) + 1
        return joined_groups(documents, np.concatenate([[0], begins, [len(documents)]]))
