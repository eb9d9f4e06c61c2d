"""Groups of documents in memory as prefix trees: their slots and their batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampack.documents.blocks import GROUP, Documents, joined_groups, offsets_of
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.fields.columns import FieldColumns
from streampack.forecasts.origins import Provenance
from streampack.in_memory.given import refuse_faults
from streampack.in_memory.microbatches import MicrobatchPlan
from streampack.packers.microbatches import (
    Order,
    Units,
    check_groups,
    documents_by_row,
    place_in_rows,
    put_in_order,
)
from streampack.packing.overflow import as_array
from streampack.trees.build import Trees, plant, planted
from streampack.trees.parts import Sequences, place_parts, whole_or_fewest
from streampack.trees.rows import TreeRows
from streampack.trees.slot_fields import fields_of_sequences, fields_of_slots
from streampack.window.gather import RowFormat, RowStage


@dataclass(frozen=True, slots=True, eq=False)
class TreePlan(MicrobatchPlan):
    """Assignment of groups, as trees, to the micro-batches of each rank, made by `pack`.

    Attributes:
        group: (N,) int64, index of each document's tree, which is a group or a part of one.
        shared: (N,) int64, tokens of each document that share the slots of an earlier document.
    """

    group: NDArray[np.int64]
    shared: NDArray[np.int64]

    @property
    def shared_tokens(self) -> int:
        """Number of tokens that share the slots of an earlier document."""
        return int(self.shared.sum())

    def _slots(self) -> NDArray[np.int64]:
        return self.lengths - self.shared

    def _aligned_slots(self) -> NDArray[np.int64]:
        slots = self._slots()
        trees, first, tree = np.unique(self.group, return_index=True, return_inverse=True)
        total = np.zeros(len(trees), dtype=np.int64)
        np.add.at(total, tree, slots)
        slots[first] += -total % self.align  # only the end of a tree is aligned
        return slots

    def _format(self, pad_id: int, fields: FieldSpec) -> RowFormat:
        stages: list[RowStage] = [Provenance()]
        if by_slot := fields_of_slots(fields):
            stages.append(FieldColumns(by_slot))
        stages.append(TreeRows(fields_of_sequences(fields).plus(GROUP, np.int32), 0))
        return RowFormat(pad_id=pad_id, eos_id=-1, stages=tuple(stages))

    def _images(self, images: Any, processor: Any) -> NoReturn:
        raise ConfigError(
            "Trees hold no images: a tree shares slots among documents, and images do not.",
            'Leave out layout="tree".',
            setting="layout",
        )

    def _block(self, block: Documents, numbers: NDArray[np.int64]) -> Documents:
        """Return the documents of a row as trees.

        Raises:
            ConfigError: a document shares fewer tokens with its group than planned, or has other
                values in a field with several numbers per token.
        """
        group = self.group[numbers]
        begins = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        groups = np.append(begins, len(numbers))
        less = np.flatnonzero(
            plant(block.tokens, block.offsets, groups).shared < self.shared[numbers]
        )
        if len(less):
            i = int(numbers[less[0]])
            raise ConfigError(
                f"Document {i} must begin with the {self.shared[i]} planned tokens of its group, "
                "but its ids differ.",
                "Pass prefix= with the length of each group's shared prefix, or ids=, to pack.",
                setting="prefix",
            )
        trees, faults = planted(joined_groups(block, groups))
        refuse_faults(faults, numbers, "Pass equal values for shared tokens, or drop layout=.")
        return trees


@dataclass(frozen=True, slots=True)
class Grouped:
    """Documents in groups, with the arguments from which their shared prefixes follow.

    Attributes:
        lengths: (N,) lengths of the documents.
        group: (N,) index of each document's group.
        ids: the documents' ids, to find shared prefixes.
        prefix: length of the groups' shared prefix: one number for all, or one per document.

    Raises:
        ConfigError: `ids` and `prefix` are both given or both missing, or do not fit `lengths`.
    """

    lengths: NDArray[np.int64]
    group: NDArray[np.int64]
    ids: Sequence[Any] | None
    prefix: ArrayLike | None

    def __post_init__(self) -> None:
        if (self.ids is None) == (self.prefix is None):
            raise ConfigError(
                'layout="tree" needs either ids= or prefix= to know the shared prefix of each '
                "group.",
                "Pass ids=, the documents, or prefix=, the length of each document's prompt.",
                setting="prefix",
            )
        if self.prefix is not None:
            prefixes = as_array(self.prefix)
            fits = prefixes.shape in ((), self.lengths.shape) and prefixes.dtype.kind in "iu"
            if not fits or (prefixes < 0).any() or (prefixes > self.lengths).any():
                raise ConfigError(
                    f"prefix must have integers from 0 to the document's length, got shape "
                    f"{prefixes.shape} and dtype {prefixes.dtype}, or a number out of range.",
                    "Pass one integer, or one for each document.",
                    setting="prefix",
                )
            object.__setattr__(self, "prefix", np.broadcast_to(prefixes, self.lengths.shape))
            return
        assert self.ids is not None
        arrays = [np.asarray(self.ids[i]).astype(np.uint32) for i in range(len(self.lengths))]
        if [len(array) for array in arrays] != self.lengths.tolist():
            raise ConfigError(
                "ids must have the given lengths, but some documents are longer or shorter.",
                "Pass the documents' ids in the order of lengths.",
                setting="ids",
            )
        object.__setattr__(self, "ids", arrays)

    def shared(self, order: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens of each document share slots with those before, (N,) int64.

        Args:
            order: (N,) the documents, group by group.
            group: (N,) index of each document's group, or part of one.
        """
        shared = np.zeros(len(order), dtype=np.int64)
        begins = _begins(group[order])
        if self.prefix is not None:
            prefix: NDArray[np.int64] = np.asarray(self.prefix)
            shared[order] = np.where(begins, 0, prefix[order])
        elif len(order):
            shared[order] = self._trees(order, begins).shared
        return shared

    def depth_first(self) -> NDArray[np.int64]:
        """Return the documents group by group, (N,) int64, next to those they share most with."""
        order = np.argsort(self.group, kind="stable")
        if self.ids is None or not len(order):
            return order
        trees = self._trees(order, _begins(self.group[order]))
        last = trees.slot[np.cumsum(self.lengths[order]) - 1]
        return np.asarray(order[np.lexsort((last, self.group[order]))])

    def _trees(self, order: NDArray[np.int64], begins: NDArray[np.bool_]) -> Trees:
        assert self.ids is not None
        tokens = np.concatenate([self.ids[i] for i in order.tolist()])
        groups = np.append(np.flatnonzero(begins), len(order))
        return plant(tokens, offsets_of(self.lengths[order]), groups)


def _begins(group: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.append(True, group[1:] != group[:-1])[: len(group)]


def plan_trees(
    grouped: Grouped,
    names: Sequence[Any],
    costs_of: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    *,
    seq_len: int,
    ranks: int,
    align: int,
    within: Literal["rank", "row"] | None,
    microbatches: int | None,
    order: Order,
    seed: int,
) -> TreePlan:
    """Return the plan of `pack` for groups with these names.

    Raises:
        PlanError: a group must not be divided and is longer than a row, or there are too few
            `microbatches`.
    """
    sequences, documents = _sequences(grouped, costs_of, align)
    count, rows = 0, None
    if within is None:
        parts, count = place_parts(sequences, seq_len, ranks, microbatches or 0)
        parts = parts[np.argsort(parts[:, 0])]
        spans, rows = parts[:, :2], parts[:, 2]
    elif within == "rank":
        spans = np.array(whole_or_fewest(sequences, seq_len), dtype=np.int64).reshape(-1, 2)
    else:
        spans = np.column_stack([sequences.groups[:-1], sequences.groups[1:]])
    part = np.empty(len(documents), dtype=np.int64)
    part[documents] = np.repeat(np.arange(len(spans)), spans[:, 1] - spans[:, 0])
    shared = grouped.shared(np.argsort(part, kind="stable"), part)
    costs = costs_of(grouped.lengths) - prefix_costs(costs_of, shared)
    units = Units(part, sequences.slots(*spans.T), sequences.work(*spans.T))
    if rows is not None:
        row = put_in_order(rows, ranks, count, order=order, seed=seed, microbatches=microbatches)[
            part
        ]
    else:
        if within == "row":
            check_groups(units, names, seq_len, "slots", "leave out within=")
        groups = grouped.group[documents[spans[:, 0]]] if within == "rank" else None
        count, row = place_in_rows(
            units, seq_len, ranks, rank_groups=groups, microbatches=microbatches, order=order,
            seed=seed,
        )  # fmt: skip
    offsets, placed = documents_by_row(row, part, ranks * count)
    return TreePlan(
        seq_len, ranks, count, align, grouped.lengths, costs, offsets, placed, part, shared
    )


def _sequences(
    grouped: Grouped, costs_of: Callable[[NDArray[np.int64]], NDArray[np.float64]], align: int
) -> tuple[Sequences, NDArray[np.int64]]:
    """Return the documents depth first as sequences, and their indices (N,)."""
    order = grouped.depth_first()
    group = grouped.group[order]
    path = grouped.shared(order, grouped.group)[order]
    path_cost = prefix_costs(costs_of, path)
    cost = costs_of(grouped.lengths[order]) - path_cost
    begins = np.append(np.flatnonzero(_begins(group)), len(order))
    cumulative = np.append(0.0, np.cumsum(cost))
    tokens = offsets_of(grouped.lengths[order] - path)
    return Sequences(begins, tokens, path, cumulative, path_cost, align), order


def prefix_costs(
    costs_of: Callable[[NDArray[np.int64]], NDArray[np.float64]], shared: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the costs of shared prefixes (N,) float64, 0 where nothing is shared."""
    return np.where(shared > 0, costs_of(np.maximum(shared, 1)), 0.0)
