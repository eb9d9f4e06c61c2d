"""Block stage of runs with `layout="tree"`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streampack.documents.blocks import Documents
from streampack.stages.base import Place
from streampack.trees.build import planted


@dataclass(frozen=True, slots=True)
class Planted:
    """Block stage that converts groups to trees."""

    def describe(self) -> Mapping[str, Any]:
        return {"layout": "tree"}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        return planted(documents) if len(documents) else documents
