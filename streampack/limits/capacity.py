"""Capacity: further limits of a row, such as the patches of its images.

Steps, for whole documents that have tokens and a weight for each limit:
  1. Documents are sorted by decreasing share of their scarcest limit (tokens of `seq_len`, or a
     weight of its capacity), ties by arrival. Shares are compared in integer units of 2**-30.
  2. Among the rows with room under every limit, best-fit takes the row with least room for tokens,
     ties to the earliest opened, and first-fit the earliest opened. If there is no such row, a new
     one is opened.

The fill of a row is the fill of its fullest limit.

Cost: O(documents x open rows), compiled; a row is closed once no document fits it. A window has
some hundred rows. No token is dropped.

With the order by largest share this is the usual heuristic of vector bin packing (R. Panigrahy,
K. Talwar, L. Uyeda, U. Wieder, "Heuristics for Vector Bin Packing", 2011).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel_of
from streampack.arguments import is_whole
from streampack.documents.blocks import Fields, offsets_of
from streampack.errors import ConfigError, PlanError
from streampack.packing.overflow import checked_lengths
from streampack.packing.plan import Plan
from streampack.packing.request import DocumentSizes
from streampack.packing.row_limits import RowLimits

if TYPE_CHECKING:
    from streampack.packing.fit_decreasing import Decreasing
    from streampack.packing.packer import Packer
    from streampack.stages.recipe import Recipe


@dataclass(frozen=True)
class Capacity(RowLimits):
    """Limit a row by document fields, beside its tokens: one of a packer's ``limits=``.

    It requires whole documents, so overflow "drop" or "error".

    Args:
        most: limit of a row by document field, as ``{"patches": 4096}`` for images, or any integer
            field.
    """

    most: Mapping[str, int] = field(hash=False)

    def __post_init__(self) -> None:
        most: Any = self.most
        known = isinstance(most, Mapping) and all(
            isinstance(name, str) and is_whole(value) and 1 <= value < 1 << 31
            for name, value in most.items()
        )
        if not known:
            raise ConfigError(
                f"Capacity must map document fields to whole numbers, got {most!r:.100}.",
                'Pass the limits of a row by document field, as Capacity({"patches": 4096}).',
                setting="most",
            )
        object.__setattr__(self, "most", {name: int(value) for name, value in most.items()})

    @property
    def fields(self) -> tuple[str, ...]:
        """See `RowLimits`."""
        return (*self.most,)

    def require(self, packer: Packer) -> None:
        """Raise `ConfigError` if documents would be cut."""
        for name in self.most:
            require_whole(packer, name)

    def add(self, recipe: Recipe) -> None:
        """Raise `ConfigError` unless the fields are declared as integers."""
        require_declared(recipe, self.fields, "limits")

    def describe(self) -> dict[str, Any]:
        """See `RowLimits`."""
        return {"capacity": self.most} if self.most else {}

    def fits(self, sizes: DocumentSizes, seq_len: int) -> NDArray[np.bool_]:
        """See `RowLimits`."""
        return super().fits(sizes, seq_len) & within(self.most, sizes.weights, len(sizes.lengths))

    def excess(self, weights: Fields, i: int) -> str | None:
        """See `RowLimits`."""
        return excess(self.most, weights, i)

    def plan(self, packer: Decreasing, lengths: NDArray[np.int64], weights: Fields) -> Plan:
        """See `plan_within`."""
        return plan_within(
            lengths, weights, self.most, seq_len=packer.seq_len, align=packer.multiple,
            best=packer.best, overflow=packer.overflow,
        )  # fmt: skip

    def loads(self, plan: Plan, weights: Fields) -> NDArray[np.int64]:
        """See `row_loads`."""
        return row_loads(plan, self.most, weights)

    def check(self, plan: Plan, weights: Fields) -> None:
        """See `check_weights`."""
        check_weights(plan, self.most, weights)


def require_whole(
    packer: Packer, weight: str, overflows: Sequence[str] = ("drop", "error")
) -> None:
    """Raise `ConfigError` unless documents, which have a weight, are never cut."""
    extra = getattr(packer, "extra_capacity", 0)
    if packer.overflow not in overflows or extra or not packer.keeps_whole:
        raise ConfigError(
            f"Packing by {weight} requires whole documents, got {type(packer).__name__} with "
            f"overflow={packer.overflow!r}{f' and extra_capacity={extra}' if extra else ''}, which "
            "cuts them.",
            'Use BestFitDecreasing with overflow="drop" or "error", and no extra capacity.',
            setting="overflow",
        )


def require_declared(recipe: Recipe, names: Sequence[str], setting: str) -> None:
    """Raise `ConfigError` unless every name is a declared integer field."""
    for name in names:
        declared = recipe.fields.document.get(name)
        if declared is None or declared.kind not in "iu":
            remedy = f'Declare it: document_fields={{"{name}": "int64"}}.'
            if name == "patches":
                remedy = "Pass processor= for documents with images, or leave it out."
            raise ConfigError(
                f'The packer uses the document field "{name}", which is not declared as an integer '
                "field.",
                remedy,
                setting=setting,
            )


def within(capacity: Mapping[str, int], weights: Fields, count: int) -> NDArray[np.bool_]:
    """Return (count,) bool: documents with these weights that fit a row under every limit."""
    fits = np.ones(count, dtype=np.bool_)
    for name, most in capacity.items():
        fits &= weights[name] <= most
    return fits


def excess(capacity: Mapping[str, int], weights: Fields, i: int) -> str | None:
    """Describe the limit that document i exceeds, as "has 9 patches, a row has 5", or None."""
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
    """Plan documents with these lengths and weights (N,) by the steps of the module.

    Raises:
        PlanError: a weight is missing, or a document is too large and `overflow` is "error".
    """
    lengths = checked_lengths(lengths)
    missing = [name for name in capacity if name not in weights]
    if missing:
        raise PlanError(
            f"A capacity of {missing[0]} requires the documents' {missing[0]}, which are missing "
            "from weights.",
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
    packable = np.flatnonzero(fits & (lengths > 0))
    sizes = np.stack([-(-lengths // align) * align, *weights.values()])[:, packable]
    order, bins = np.empty((2, len(packable)), dtype=np.int64)
    rows = fit_within(sizes, np.array([seq_len, *capacity.values()]), best, order, bins)
    by_row = np.argsort(bins, kind="stable")
    document = packable[order[by_row]]
    plan = Plan.plain(
        offsets_of(np.bincount(bins, minlength=rows)), seq_len, document,
        np.zeros_like(document), lengths[document], np.where(fits, 0, lengths),
    )  # fmt: skip
    return replace(plan, pad_after=-lengths[document] % align) if align > 1 else plan


def row_weights(plan: Plan, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum (R,) int64 of the weights (N,) of each row's documents."""
    if not plan.num_rows:
        return np.zeros(0, dtype=np.int64)
    return np.asarray(np.add.reduceat(weights[plan.document], plan.row_offsets[:-1]))


def row_loads(plan: Plan, capacity: Mapping[str, int], weights: Fields) -> NDArray[np.int64]:
    """Return the load (R,) int64 of each row in slots: the fill of its fullest limit, scaled."""
    loads = plan.row_fill()
    for name, most in capacity.items():
        loads = np.maximum(loads, row_weights(plan, weights[name]) * plan.seq_len // most)
    return loads


def check_weights(plan: Plan, capacity: Mapping[str, int], weights: Fields) -> None:
    """Raise `PlanError` if a row of the plan exceeds a capacity."""
    for name, most in capacity.items():
        over = np.flatnonzero(row_weights(plan, weights[name]) > most)
        if len(over):
            raise PlanError(f"In this plan a row has too many {name} (at {over[:5].tolist()}).")


@kernel_of(lambda sizes, *_: sizes.size * sizes.shape[1] / 2)
def fit_within(
    sizes: NDArray[np.int64],
    limits: NDArray[np.int64],
    best: bool,
    order: NDArray[np.int64],
    bins: NDArray[np.int64],
) -> int:
    """Write the placement order of documents and the row of each; return the number of rows.

    Args:
        sizes: (K, N) int64, each document's use of each limit, tokens first; none exceeds it.
        limits: (K,) int64.
        best: best-fit if True, first-fit if False.
        order: (N,) output, documents in placement order.
        bins: (N,) output, row of each document of `order`, numbered in order of opening.
    """
    count = sizes.shape[1]
    share = np.zeros(count, dtype=np.int64)
    for k in range(len(limits)):
        for i in range(count):
            share[i] = max(share[i], (sizes[k, i] << 30) // limits[k])
    for i, document in enumerate(np.argsort(-share, kind="mergesort")):
        order[i] = document
    least = np.empty_like(limits)  # smallest use of each limit by any document
    for k in range(len(limits)):
        least[k] = sizes[k].min() if count else 0
    rooms = np.empty((count, len(limits)), dtype=np.int64)  # room of open rows, oldest first
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
            for k in range(len(limits)):
                rooms[chosen, k] = limits[k]
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
                for k in range(len(limits)):
                    rooms[r, k] = rooms[r + 1, k]
                name[r] = name[r + 1]
    return rows
