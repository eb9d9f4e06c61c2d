"""Leaf for groups: keep the documents of a record together in a run."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streampack.documents.blocks import GROUP
from streampack.groups.rows import GroupsSplit
from streampack.groups.stage import Together
from streampack.packing.fit_decreasing import BestFitDecreasing

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe

logger = logging.getLogger(__name__)


def add(recipe: Recipe, value: object) -> None:
    """Make the packer keep the documents of a record together, if it supports that."""
    recipe.overflow = recipe.overflow or "drop"
    packer = recipe.packer
    usual = BestFitDecreasing(seq_len=packer.seq_lens[-1], overflow=packer.overflow)
    if packer == usual and usual.overflow in ("drop", "error"):
        from streampack.groups.whole_groups import WholeGroups

        recipe.packer = WholeGroups(seq_len=usual.seq_len, overflow=usual.overflow)
        _add_members(recipe)
        return
    logger.warning(
        "The documents of a record are packed apart: only BestFitDecreasing with overflow "
        '"drop" or "error", and without choice=, keeps them in one batch.'
    )


def _add_members(recipe: Recipe) -> None:
    """Add the stages of groups, for a packer that places their members one by one."""
    recipe.gathered = replace(recipe.fields, document={})
    recipe.units = ("the group that begins with ", "tokens")
    recipe.whole = True
    recipe.add("units", Together())
    recipe.add_rows(
        "units", GroupsSplit(recipe.fields.plus(GROUP, np.int32), recipe.attention == "row")
    )
