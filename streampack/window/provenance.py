"""Provenance: row stage that records the origin of every document piece."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from streampack.window.entries import FieldStore
from streampack.window.gather import Pieces, RowFormat
from streampack.window.packed_rows import PROVENANCE, PackedRows

if TYPE_CHECKING:
    from streampack.run.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Provenance:
    """Row stage that adds `PackedRows.provenance`."""

    def __call__(self, rows: PackedRows, pieces: Pieces, held: FieldStore) -> PackedRows:
        """See `RowStage`."""
        made = np.empty(len(pieces.serial), dtype=PROVENANCE)
        for name in ("source", "shard", "index"):
            made[name] = pieces.origin[name]
        made["start"], made["stop"] = pieces.start, pieces.stop
        return rows._replace(provenance=made)

    def empty(self, rows: PackedRows) -> PackedRows:
        """See `RowStage`."""
        return rows._replace(provenance=np.zeros(0, dtype=PROVENANCE))


def traced(layout: RowFormat) -> RowFormat:
    """The same format, with provenance."""
    if Provenance() in layout.stages:
        return layout
    return replace(layout, stages=(Provenance(), *layout.stages))


def add(recipe: Recipe, value: object) -> None:
    """Add the stage that records provenance to the recipe."""
    recipe.add_rows("origins", Provenance())
