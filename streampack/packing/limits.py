"""Capacity: further limits of a row, such as the patches of its images.

Steps, for whole documents that have tokens and a weight for each limit:
  1. In order of decreasing share of the limit that they take most of (tokens of `seq_len`, or a
     weight of its capacity), ties by arrival. Shares are compared as whole 2**-30.
  2. Best-fit puts each into the row that has least room for tokens left, among the rows in which
     every limit allows it, ties to the earliest opened; first-fit into the earliest opened of them.
     If there is none, a row is opened.

A row then counts as full as its fullest limit.

Cost: O(documents x open rows), compiled; a row is closed once no document fits it any more. A
window has some hundred rows. Nothing is thrown away.

With the order by largest share this is the usual heuristic of vector bin packing (R. Panigrahy,
K. Talwar, L. Uyeda, U. Wieder, "Heuristics for Vector Bin Packing", 2011).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.arguments import is_whole
from streampack.documents.blocks import PATCHES, Fields, offsets_of
from streampack.errors import ConfigError, PlanError
from streampack.packing.overflow import checked_lengths
from streampack.packing.plan import Plan

if TYPE_CHECKING:
    from streampack.run.recipe import Recipe


def require_capacity(capacity: Any) -> dict[str, int]:
    """`capacity` as a dict; raises `ConfigError` unless it is one of whole numbers by name."""
    known = isinstance(capacity, Mapping) and all(
        isinstance(name, str) and is_whole(most) and 1 <= most < 1 << 31
        for name, most in capacity.items()
    )
    if not known:
        raise ConfigError(
            f"capacity is {capacity!r:.100}.",
            'Pass what a row holds at most, by document field: capacity={"patches": 4096}.',
            setting="capacity",
        )
    return {name: int(most) for name, most in capacity.items()}


def require_whole(weights: Sequence[str], overflow: str, extra_capacity: int) -> None:
    """Raise `ConfigError` if documents have weights and are cut."""
    if weights and (overflow not in ("drop", "error") or extra_capacity):
        raise ConfigError(
            f"Rows go by {weights[0]}, with overflow={overflow!r} and "
            f"extra_capacity={extra_capacity}, and a document that is cut has no such number.",
            'Use overflow="drop" or "error", and no extra capacity.',
            setting="overflow",
        )


def within(capacity: Mapping[str, int], weights: Fields, count: int) -> NDArray[np.bool_]:
    """(count,) which documents of these weights fit a row by every limit."""
    fits = np.ones(count, dtype=np.bool_)
    for name, most in capacity.items():
        fits &= weights[name] <= most
    return fits


def excess(capacity: Mapping[str, int], weights: Fields, i: int) -> str | None:
    """Why document i is too large by a weight: "has 9 patches, a row has 5"; or None."""
    over = (name for name, most in capacity.items() if weights[name][i] > most)
    name = next(over, None)
    return None if name is None else f"has {weights[name][i]} {name}, a row has {capacity[name]}"


def plan_within(
    lengths: NDArray[np.int64],
    weights: Fields,
    capacity: Mapping[str, int],
    *,
    seq_len: int,
    align: int,
    best: bool,
    overflow: str,
) -> Plan:
    """The plan of documents of these lengths and weights (N,); see the module's docstring.

    Raises:
        PlanError: there are no such weights, or a document is too large and `overflow` is "error".
    """
    lengths = checked_lengths(lengths)
    missing = [name for name in capacity if name not in weights]
    if missing:
        raise PlanError(
            f"The packer has a capacity of {missing[0]}, and the documents' {missing[0]} are not "
            "given.",
            f'Pass weights={{"{missing[0]}": ...}}, one whole number for each document.',
            setting="weights",
        )
    weights = {name: checked_lengths(weights[name]) for name in capacity}
    fits = (lengths <= seq_len) & within(capacity, weights, len(lengths))
    if overflow == "error" and not fits.all():
        i = int(np.argmin(fits))
        raise PlanError(
            f"Document {i} "
            f"{excess(capacity, weights, i) or f'has {lengths[i]} tokens, a row has {seq_len}'}.",
            'Filter such documents out, or use overflow="drop".',
            setting="overflow",
        )
    own = np.flatnonzero(fits & (lengths > 0))
    sizes = np.stack([-(-lengths // align) * align, *weights.values()])[:, own]
    order, bins = np.empty((2, len(own)), dtype=np.int64)
    rows = fit_within(sizes, np.array([seq_len, *capacity.values()]), best, order, bins)
    by_row = np.argsort(bins, kind="stable")
    document = own[order[by_row]]
    plan = Plan.plain(
        offsets_of(np.bincount(bins, minlength=rows)), seq_len, document,
        np.zeros_like(document), lengths[document], np.where(fits, 0, lengths),
    )  # fmt: skip
    return replace(plan, pad_after=-lengths[document] % align) if align > 1 else plan


def row_weights(plan: Plan, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """(R,) int64: the weights (N,) of a row's documents, summed."""
    if not plan.num_rows:
        return np.zeros(0, dtype=np.int64)
    return np.asarray(np.add.reduceat(weights[plan.document], plan.row_offsets[:-1]))


def row_loads(plan: Plan, capacity: Mapping[str, int], weights: Fields) -> NDArray[np.int64]:
    """(R,) int64: slots of each row, at least as many as the share of any limit that it uses up."""
    loads = plan.row_fill()
    for name, most in capacity.items():
        loads = np.maximum(loads, row_weights(plan, weights[name]) * plan.seq_len // most)
    return loads


def check_weights(plan: Plan, capacity: Mapping[str, int], weights: Fields) -> None:
    """Raise `PlanError` if a row of the plan holds more than its capacity."""
    for name, most in capacity.items():
        over = np.flatnonzero(row_weights(plan, weights[name]) > most)
        if len(over):
            raise PlanError(f"In this plan a row has too many {name} (at {over[:5].tolist()}).")


@kernel
def fit_within(
    sizes: NDArray[np.int64],
    limits: NDArray[np.int64],
    best: bool,
    order: NDArray[np.int64],
    bins: NDArray[np.int64],
) -> int:
    """Fill in the order of documents and the row of each; returns how many rows there are.

    Args:
        sizes: (K, N) int64, what each takes of each limit, tokens first; none exceeds its limit.
        limits: (K,) int64.
        best: best-fit if True, first-fit if False.
        order: (N,), filled with the documents in the order in which they are placed.
        bins: (N,), filled with the row of each of these, numbered in order of opening.
    """
    count = sizes.shape[1]
    share = np.zeros(count, dtype=np.int64)
    for k in range(len(limits)):
        for i in range(count):
            share[i] = max(share[i], (sizes[k, i] << 30) // limits[k])
    order[:] = np.argsort(-share, kind="mergesort")
    least = np.empty_like(limits)  # that any document takes of a limit
    for k in range(len(limits)):
        least[k] = sizes[k].min() if count else 0
    rooms = np.empty((count, len(limits)), dtype=np.int64)  # of open rows, in order of opening
    name = np.empty(count, dtype=np.int64)
    opened = rows = 0
    for n in range(count):
        i = order[n]
        chosen = -1
        for r in range(opened):
            if chosen >= 0 and rooms[r, 0] >= rooms[chosen, 0]:
                continue
            fits = True
            for k in range(len(limits)):
                fits &= rooms[r, k] >= sizes[k, i]
            if fits:
                chosen = r
                if not best:
                    break
        if chosen < 0:
            chosen = opened
            rooms[chosen] = limits
            name[chosen] = rows
            opened += 1
            rows += 1
        bins[n] = name[chosen]
        closed = False
        for k in range(len(limits)):
            rooms[chosen, k] -= sizes[k, i]
            closed |= rooms[chosen, k] < least[k]
        if closed:
            opened -= 1
            for r in range(chosen, opened):
                rooms[r] = rooms[r + 1]
                name[r] = name[r + 1]
    return rows


def add(recipe: Recipe, names: Sequence[str]) -> None:
    """Raise `ConfigError` unless there are the fields of whole numbers that rows go by."""
    fields, packer = recipe.fields, recipe.packer
    for name in names:
        if name not in fields.document or fields.document[name].kind not in "iu":
            remedy = f'Declare it: document_fields={{"{name}": "int64"}}.'
            if name == PATCHES:
                remedy = "Pass processor=, of documents with images, or leave it out."
            raise ConfigError(
                f'The packer goes by "{name}", which is no document field of whole numbers.',
                remedy,
                setting="capacity" if name in packer.capacity else "balance",
            )
