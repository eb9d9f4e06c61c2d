"""The table of leaves: optional capabilities of a run, imported only by runs that use them.

A leaf is requested by an argument of `PackedDataset`, or by the `leaves` of a source or packer. Its
function ``add(recipe, value)`` checks the value and adds stages to the `Recipe` of the run; without
a value the function is not imported. Leaves are added in the order of the table, so a leaf that
chooses a default comes before a leaf that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe

#: Leaves that may choose the packer, in order.
BEFORE_PACKER = {
    "order": "orders.stream:add",
    "layout": "trees.leaf:add",
    "processor": "images.leaf:add",
    "groups": "groups.leaf:add",
    "turns": "chats.long_chats:add",
}
#: Leaves that are added once the packer is known, in order.
AFTER_PACKER = {
    "exclude": "exclusion.leaf:add",
    "tokenizer": "tokenization.leaf:add",
    "eos": "tokenization.ends:add",
    "filter": "hooks.stages:add_filter",
    "map": "hooks.stages:add_map",
    "stages": "hooks.own:add",
    "fields": "fields.stage:add",
    "provenance": "forecasts.origins:add",
    "ledger": "accounts.leaf:add",
    "mixture": "mixtures.by_source:add",
}


def add_leaves(recipe: Recipe) -> None:
    """Let every requested leaf add its part to the recipe."""
    _add(recipe, BEFORE_PACKER)
    for rule in (recipe.packer.choice, *recipe.packer.limits):
        if rule is not None:
            rule.add(recipe)
    _add(recipe, AFTER_PACKER)


def _add(recipe: Recipe, table: Mapping[str, str]) -> None:
    for name, function in table.items():
        value = recipe.given.get(name)
        if value is not None:
            load(function)(recipe, value)


def load(function: str) -> Any:
    """Import and return ``module:name`` of streampack."""
    module, _, name = function.partition(":")
    return attrgetter(name)(import_module(f"streampack.{module}"))
