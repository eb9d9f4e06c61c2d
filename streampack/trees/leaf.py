"""Trees in a run: ``layout="tree"``, and the settings that it excludes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streampack.arguments import one_of
from streampack.documents.blocks import GROUP
from streampack.errors import ConfigError
from streampack.groups.stage import Together
from streampack.packing.fit_decreasing import BestFitDecreasing
from streampack.packing.packer import fields_of
from streampack.trees.rows import TreeRows
from streampack.trees.slot_fields import fields_of_sequences, fields_of_slots
from streampack.trees.stage import Planted

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe


def add(recipe: Recipe, layout: str) -> None:
    """Add the stages of trees.

    Raises:
        ConfigError: the layout is unknown, records have one document each, trees would be cut, or
            their branches would attend to one another.
    """
    one_of("layout", layout, ["documents", "tree"])
    if recipe.given["order"] is None:
        recipe.overflow = "drop"
    packer, wrong = recipe.packer, None
    divides = packer == BestFitDecreasing(seq_len=packer.seq_lens[-1], overflow="split")
    if not recipe.source._several:
        wrong = "the records have one document each", 'leave out layout="tree"'
    elif recipe.attention == "row":
        wrong = 'attention is "row"', "leave out attention="
    elif not divides and (packer.overflow not in ("drop", "error") or not packer.keeps_whole):
        size = packer.seq_lens[-1]
        wrong = (
            f"{type(packer).__name__} with overflow={packer.overflow!r} cuts documents",
            f'use packer=BestFitDecreasing(seq_len={size}, overflow="drop"), or "error"',
        )
    elif fields := fields_of(packer):
        wrong = f"the packer uses the documents' {fields[0]}", "leave out its limits"
    if wrong is not None:
        fact, remedy = wrong
        raise ConfigError(
            f'layout is "tree", and {fact}.', f"{remedy[0].upper()}{remedy[1:]}.", setting="layout"
        )
    recipe.given["groups"] = None  # a tree is one document of the window
    recipe.gathered = fields_of_slots(recipe.fields)
    recipe.units = ("the group that begins with ", "slots")
    recipe.add("units", Together())
    if divides:
        from streampack.groups.whole_groups import WholeGroups

        recipe.packer = WholeGroups(seq_len=packer.seq_lens[-1], overflow="error")
        recipe.add("units", Planted(packer.seq_lens[-1]))
    else:
        recipe.add("units", Planted())
    sources = len(recipe.source._parts) if recipe.given.get("mixture") else 0
    types = fields_of_sequences(recipe.fields).plus(GROUP, np.int32)
    recipe.add_rows("counts", TreeRows(types, sources, divided=divides))
