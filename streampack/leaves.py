"""The table of leaves: optional capabilities of a run, imported only by runs that use them.

A leaf is requested by an argument of `PackedDataset`, or by the `leaves` of a source or packer. Its
function ``add(recipe, value)`` checks the value and adds stages to the `Recipe` of the run; without
a value the function is not imported. Leaves are added in the order of the table, so a leaf that
chooses a default comes before a leaf that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streampack.run.recipe import Recipe

#: Value of a leaf requested by a source, and by no argument of the dataset.
ASKED: Any = type("Asked", (), {"__repr__": lambda self: "asked by the source"})()

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
    "tokenizer": "tokenization.leaf:add",
    "eos": "tokenization.ends:add",
    "filter": "hooks.stages:add_filter",
    "map": "hooks.stages:add_map",
    "stages": "hooks.own:add",
    "fields": "fields.stage:add",
    "provenance": "forecasts.origins:add",
    "mixture": "mixtures.by_source:add",
}

#: Errors for wrong arguments of a call, a missing attribute, and an argument of another source.
WRONG_CALL, MISSING = "wrong_calls.calls:wrong_call", "wrong_calls.attributes:missing"
REFUSED = "wrong_calls.calls:refused"
#: Errors for records with unknown documents, and for an object without documents.
UNKNOWN_DOCUMENT = "wrong_calls.corpora:unknown_document"
NO_CORPUS = "wrong_calls.corpora:refuse_no_corpus"
#: Reads the declared fields of a record.
RECORD_FIELDS = "fields.records:fields_in"
#: Functions that make sources of objects in memory, by the kind of object.
SOURCES = {
    "path": "files.paths:seems_path",
    "paths": "files.paths:open_files",
    "records": "iterables.record_documents:open_records",
    "arrays": "iterables.table:of_arrays",
    "columns": "iterables.table:Table",
    "stream": "iterables.hf:HFStream",
    "iterable": "iterables.source:Iterable",
}
#: Opens the documents of a lane in the order of `LaneConfig.order`.
ORDERED = "orders.stream:open_ordered"
#: Classes of batches, by the part that a leaf attached to their rows.
BATCHES = {"tree": "trees.batch:TreeBatch"}
#: Feeds of a loader's batches, by its setting.
FEEDS = {"num_workers": "workers.feed:WorkerFeed"}
#: Classes of plans, by the attribute of the packer that requests them.
PLANS = {"_shares_batches": "context_parallel.run:plan_of"}
#: Measures a sample of the corpus.
MEASURED = "forecasts.measuring:measured"
#: Compares the fingerprints of two runs; resumes a run with changed settings.
CHANGED_FIELDS, CHANGED_SETTINGS = (
    "changes.fields:changed_fields",
    "changes.settings:resume_changed",
)
#: Checks that all ranks start the same run.
SAME_START = "distributed.same_start:check_same_start"
#: Types that numba gives to a kernel which others call, and to a machine instruction.
INNER_TYPE, INSTRUCTION_TYPE = "_compiling:type_of_inner", "_compiling:type_of_instruction"
#: Waits for other processes that compile; logs the first compilation; goes on without a cache.
COMPILATION_TURN, LOG_COMPILATION = "_compiling:turn", "_compiling:log_first"
LOSE_CACHE = "_compiling:lose_cache"
#: Connection of the ranks in a job of several processes.
RANKS = "distributed.exchange:ProcessRanks"


def add_leaves(recipe: Recipe) -> None:
    """Let every requested leaf add its part to the recipe."""
    _add(recipe, BEFORE_PACKER)
    for rule in (recipe.packer.choice, *recipe.packer.limits):
        if rule is not None:
            rule.add(recipe)
    _add(recipe, AFTER_PACKER)


def of_settings(owner: Any, base: type, table: Mapping[str, str]) -> Iterator[Any]:
    """Yield the results of the table's functions for each setting that differs from its default.

    Args:
        owner: the object with the settings, which the functions take.
        base: class with the defaults as attributes.
        table: functions by name of the setting.
    """
    for name, function in table.items():
        if getattr(owner, name) != getattr(base, name):
            yield load(function)(owner)


def _add(recipe: Recipe, table: Mapping[str, str]) -> None:
    for name, function in table.items():
        value = recipe.given.get(name)
        if value is not None:
            load(function)(recipe, value)


def load(function: str) -> Any:
    """Import and return ``module:name`` of streampack."""
    module, _, name = function.partition(":")
    return attrgetter(name)(import_module(f"streampack.{module}"))
