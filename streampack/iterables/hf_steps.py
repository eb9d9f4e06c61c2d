"""Steps of a Hugging Face stream with rows that depend on its shards or on their order.

`IterableDataset.shard` divides the number of `take` and `skip` among the shards, and the other
steps here count, pair or draw rows within a shard. Several lanes would so read other rows than the
stream itself gives. All other steps treat each row or each shard alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

from streampack.iterables.iterating import has_version

#: Steps that give the same rows for any division into shards, by the beginnings of their classes.
_DIVISIBLE = (
    "Arrow",
    "BufferShuffled",
    "Examples",
    "Filtered",
    "Formatted",
    "InterleavedShards",
    "Mapped",
    "Rebatched",
    "SelectColumns",
    "Shuffled",
    "Spark",
    "Typed",
    "VerticallyConcatenated",
)
#: The user's calls that make the others.
_CALLS = {
    "Cycling": "interleave_datasets",
    "Horizontally": "concatenate_datasets(axis=1)",
    "RandomlyCycling": "interleave_datasets",
    "Repeat": "repeat",
    "Skip": "skip",
    "Take": "take",
}
_RANDOM = ("BufferShuffled", "RandomlyCycling")


def undivided_step(node: Any) -> str:
    """Return the call of a step that only one lane can read; "" if any number of lanes can."""
    return next((call for each in _steps(node) if (call := _call(each))), "")


def keeps_first_order(node: Any) -> bool:
    """Return True if a later epoch, with its order of shards, would move rows between splits.

    datasets keeps the order of shards below `take` and `skip`, but neither below rows counted by
    `with_indices` nor in a concatenation, which divides the numbers of its parts.
    """
    for each in _steps(node):
        if _counts_indices(each):
            return True
        if _is(each, "Vertically") and any(_is(below, "Take", "Skip") for below in _steps(each)):
            return True
    return False


def split_after_shuffle(node: Any) -> tuple[str, str] | None:
    """Return the calls of a step that splits by position, and of a random step before it."""
    for each in _steps(node):
        if _is(each, "Take", "Skip") or _counts_indices(each):
            for below in _steps(each):
                if _is(below, *_RANDOM):
                    return _call(each), _call(below) or "shuffle"
    return None


def repair_skips(node: Any) -> None:
    """Let `skip` of datasets before 5.2 skip over several tables, of which it repeats the last."""
    for each in [] if has_version(5, 2) else _steps(node):
        if _is(each, "Skip") and hasattr(each, "_iter_arrow"):
            each._iter_arrow = MethodType(_skipped_tables, each)


def _skipped_tables(skip: Any) -> Iterator[Any]:
    skipped = skip._state_dict["skipped"] if skip._state_dict else 0
    for key, table in skip.ex_iterable.iter_arrow():
        begin = min(skip.n - skipped, len(table))
        skipped += begin
        if skip._state_dict:
            skip._state_dict["skipped"] = skipped
        if begin < len(table):
            yield key, table.slice(begin)


def _steps(node: Any) -> Iterator[Any]:
    """Yield a step and all steps before it, from the last to the first."""
    if node is not None:
        yield node
        below = [getattr(node, "ex_iterable", None), *(getattr(node, "ex_iterables", None) or ())]
        for each in below:
            yield from _steps(each)


def _is(node: Any, *names: str) -> bool:
    return type(node).__name__.startswith(names)


def _counts_indices(node: Any) -> bool:
    return bool(getattr(node, "with_indices", False))


def _call(node: Any) -> str:
    """Return the call that made a step, if its rows depend on the number of shards; else ""."""
    function = "filter" if _is(node, "Filtered") else "map"
    if _counts_indices(node):
        return f"{function}(with_indices=True)"
    if getattr(node, "drop_last_batch", False):
        return f"{function}(drop_last_batch=True)"
    if _is(node, *_DIVISIBLE):
        return ""
    name = type(node).__name__
    return next((call for start, call in _CALLS.items() if name.startswith(start)), name)
