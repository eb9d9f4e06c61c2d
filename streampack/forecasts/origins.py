"""Provenance: row stage that records the origin of every document piece."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from streampack.window.entries import HeldBlocks
from streampack.window.gather import Pieces
from streampack.window.packed_rows import PROVENANCE, PackedRows

if TYPE_CHECKING:
    from streampack.lane.config import LaneConfig
    from streampack.stages.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Provenance:
    """Row stage that adds `PackedRows.provenance`."""

    def __call__(self, rows: PackedRows, pieces: Pieces, held: HeldBlocks) -> PackedRows:
        """See `RowStage`."""
        provenance = np.empty(len(pieces.serial), dtype=PROVENANCE)
        for name in ("source", "shard", "index"):
            provenance[name] = pieces.origin[name]
        provenance["start"], provenance["stop"] = pieces.start, pieces.stop
        return rows._replace(provenance=provenance)

    def empty(self, rows: PackedRows) -> PackedRows:
        """See `RowStage`."""
        return rows._replace(provenance=np.zeros(0, dtype=PROVENANCE))


def traced(config: LaneConfig) -> LaneConfig:
    """Return the configuration of the same rows, with provenance."""
    rows = config.row_format
    if Provenance() in rows.stages:
        return config
    return replace(config, row_format=replace(rows, stages=(Provenance(), *rows.stages)))


def add(recipe: Recipe, value: object) -> None:
    """Add the stage that records provenance to the recipe."""
    recipe.add_rows("origins", Provenance())
