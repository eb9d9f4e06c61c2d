"""`pack`, which assigns documents in memory to ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampack.arguments import explained, one_of, whole_number
from streampack.errors import ConfigError, PlanError
from streampack.in_memory.microbatches import MicrobatchPlan
from streampack.packers.cost import Cost
from streampack.packers.microbatches import (
    Units,
    check_groups,
    documents_by_row,
    place_in_rows,
)
from streampack.packing.overflow import as_array, checked_lengths, require_align, require_seq_len


@explained
def pack(
    lengths: ArrayLike,
    *,
    seq_len: int,
    ranks: int = 1,
    groups: ArrayLike | None = None,
    within: Literal["rank", "row"] | None = None,
    cost: Callable[[NDArray[np.int64]], ArrayLike] | None = None,
    microbatches: int | Literal["equal"] = "equal",
    align: int | Sequence[int] = 1,
    order: Literal["shuffled", "decreasing", "peaked"] = "shuffled",
    seed: int = 0,
    layout: Literal["documents", "tree"] = "documents",
    ids: Sequence[Any] | None = None,
    prefix: ArrayLike | None = None,
) -> MicrobatchPlan:
    """Divide whole documents among ranks, in micro-batches of nearly equal cost.

    A micro-batch is one row, and documents are never cut. All ranks have the same number of
    micro-batches; the i-th one costs nearly the same on every rank, and so does the sum. For
    example, four documents for two ranks:

    >>> from streampack import pack
    >>> plan = pack([5, 2, 4, 3], seq_len=8, ranks=2)
    >>> plan.microbatches, plan.tokens.tolist()
    (1, [[7], [7]])
    >>> ids = [[11, 12, 13, 14, 15], [21, 22], [31, 32, 33, 34], [41, 42, 43]]
    >>> next(plan.batches(ids, rank=0)).input_ids.tolist()
    [[11, 12, 13, 14, 15, 21, 22, 0]]

    Args:
        lengths: (N,) length of each document in tokens, at least 1.
        seq_len: slots of a row, at least the longest document.
        ranks: number of data-parallel ranks.
        groups: (N,) integers or names; documents with the same value stay together.
        within: scope of a group: "rank", or "row" to keep it in one micro-batch. None means "rank";
            for trees, parts of a group may go to any rank.
        cost: function from lengths (M,) to costs (M,), for example `Cost.from_config`. None
            estimates a model of width 4,096.
        microbatches: number per rank. "equal" uses the fewest that the search finds to hold all
            documents. If there are fewer documents than micro-batches, some are padding alone.
        align: every document takes up a multiple of this number of slots, for context parallelism;
            several numbers mean their least common multiple.
        order: order of the micro-batches, the same on all ranks: "shuffled" by `seed`; by
            "decreasing" cost; or "peaked", with the cheapest at both ends and the costliest in the
            middle, which keeps pipelines busiest (docs/balance.md).
        seed: seed for the assignment to ranks, and for the order if it is "shuffled".
        layout: "tree" stores the shared prefix of a group once, such as a prompt with many answers
            (docs/trees.md), and batches are of `TreeBatch`. A group that is longer than a row is
            divided into parts, each of which stores the prefix that its sequences share; so are
            others where that saves micro-batches or makes them equal.
        ids: for trees, the documents as in `MicrobatchPlan.batches`, to find shared prefixes. Pass
            either `ids` or `prefix`.
        prefix: for trees, the length of the groups' shared prefix in tokens: one number for all, or
            one for each document, (N,).

    Raises:
        ConfigError: an argument is invalid.
        PlanError: a document, or a group within a row, is longer than a row, or there are too few
            `microbatches`.
    """
    seq_len = require_seq_len(seq_len, "error")
    multiple = require_align(align, seq_len)
    ranks = whole_number("ranks", ranks, most=1 << 20)
    wanted = None
    if not (isinstance(microbatches, str) and microbatches == "equal"):
        wanted = whole_number("microbatches", microbatches, most=1 << 20, otherwise='or "equal"')
    if within is not None:
        one_of("within", within, ("rank", "row"))
    one_of("order", order, ("shuffled", "decreasing", "peaked"))
    one_of("layout", layout, ("documents", "tree"))
    sizes = checked_lengths(lengths).copy()  # the caller may change its array later
    _check_sizes(sizes, seq_len)
    costs_of = partial(_costs, cost or Cost.of_width(4096))
    group, names = _numbered(groups, len(sizes))
    seed = whole_number("seed", seed, least=None)
    if layout == "tree":
        from streampack.in_memory import trees

        grouped = trees.Grouped(
            sizes, np.arange(len(sizes)) if group is None else group, ids, prefix
        )
        return trees.plan_trees(
            grouped, names, costs_of, seq_len=seq_len, ranks=ranks, align=multiple, within=within,
            microbatches=wanted, order=order, seed=seed,
        )  # fmt: skip
    costs = costs_of(sizes)
    slots = -(-sizes // multiple) * multiple
    units = Units.of(slots, costs, group if within == "row" else None)
    if within == "row":
        check_groups(units, names, seq_len, "tokens", 'within="rank"')
    count, row = place_in_rows(
        units,
        seq_len,
        ranks,
        rank_groups=None if within == "row" else group,
        microbatches=wanted,
        order=order,
        seed=seed,
    )
    offsets, documents = documents_by_row(row, units.unit, ranks * count)
    return MicrobatchPlan(seq_len, ranks, count, multiple, sizes, costs, offsets, documents)


def _check_sizes(sizes: NDArray[np.int64], seq_len: int) -> None:
    if not len(sizes):
        return
    if sizes.min() < 1:
        raise PlanError(
            f"Document {int(np.argmin(sizes))} has no tokens.",
            "Remove it from `lengths`.",
            setting="lengths",
        )
    if sizes.max() > seq_len:
        i = int(np.argmax(sizes > seq_len))
        raise PlanError(
            f"Document {i} has {sizes[i]} tokens, a row has {seq_len}.",
            f"Pass seq_len={sizes.max()} or more, or shorten or remove such documents.",
            setting="seq_len",
        )


def _costs(
    cost: Callable[[NDArray[np.int64]], ArrayLike], sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    if not callable(cost):
        raise ConfigError(
            f"cost must be a function from lengths to costs, got {cost!r}.",
            "Pass a Cost, another function, or None.",
            setting="cost",
        )
    costs = as_array(cost(sizes.copy()))
    fits = costs.shape == sizes.shape and costs.dtype.kind in "biuf"
    if not fits or not np.isfinite(costs).all() or (costs < 0).any():
        raise ConfigError(
            f"cost must return {len(sizes)} finite numbers >= 0, one per length, got shape "
            f"{costs.shape} and dtype {costs.dtype}, or a number that is negative or not finite.",
            "Return one cost for each length, or pass a Cost.",
            setting="cost",
        )
    return costs.astype(np.float64)


def _numbered(
    groups: ArrayLike | None, count: int
) -> tuple[NDArray[np.int64] | None, Sequence[Any]]:
    """Return the documents' group indices, (N,) int64 or None, and the groups' names."""
    if groups is None:
        return None, ()
    values = as_array(groups)
    if values.shape != (count,) or (count and values.dtype.kind not in "iubUS"):
        raise ConfigError(
            f"groups must have an integer or a name for each of the {count} documents, got shape "
            f"{values.shape} and dtype {values.dtype}.",
            "Pass one value for each document.",
            setting="groups",
        )
    names, number = np.unique(values, return_inverse=True)
    return number.astype(np.int64), names.tolist()
