"""Groups of documents in memory as prefix trees: their slots and their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampack.documents.blocks import GROUP, Documents, joined_groups, offsets_of
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.in_memory.microbatches import MicrobatchPlan, refuse_faults
from streampack.packing.overflow import as_array
from streampack.trees.build import plant, planted
from streampack.trees.rows import TreeRows
from streampack.trees.slot_fields import fields_of_sequences, fields_of_slots
from streampack.window.field_columns import FieldColumns
from streampack.window.gather import RowFormat, RowStage
from streampack.window.provenance import Provenance


@dataclass(frozen=True, slots=True, eq=False)
class TreePlan(MicrobatchPlan):
    """Assignment of groups, as trees, to the micro-batches of each rank, made by `pack`.

    Attributes:
        group: (N,) int64, index of each document's tree.
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


def shared_tokens(
    lengths: NDArray[np.int64],
    group: NDArray[np.int64],
    ids: Sequence[Any] | None,
    prefix: ArrayLike | None,
) -> NDArray[np.int64]:
    """Return how many tokens of each document share slots with its group, (N,) int64.

    Args:
        lengths: (N,) lengths of the documents.
        group: (N,) index of each document's group.
        ids: the documents' ids, to find shared prefixes.
        prefix: length of the groups' shared prefix: one number for all, or one per document.

    Raises:
        ConfigError: `ids` and `prefix` are both given or both missing, or do not fit `lengths`.
    """
    count = len(lengths)
    if (ids is None) == (prefix is None):
        raise ConfigError(
            'layout="tree" needs either ids= or prefix= to know the shared prefix of each group.',
            "Pass ids=, the documents, or prefix=, the length of each document's prompt.",
            setting="prefix",
        )
    order = np.argsort(group, kind="stable")
    begins = np.append(True, group[order][1:] != group[order][:-1])[:count]
    shared = np.zeros(count, dtype=np.int64)
    if prefix is not None:
        prefixes = as_array(prefix)
        fits = prefixes.shape in ((), (count,)) and prefixes.dtype.kind in "iu"
        if not fits or (prefixes < 0).any() or (prefixes > lengths).any():
            raise ConfigError(
                f"prefix must have integers from 0 to the document's length, got shape "
                f"{prefixes.shape} and dtype {prefixes.dtype}, or a number out of range.",
                "Pass one integer, or one for each document.",
                setting="prefix",
            )
        shared[order] = np.where(begins, 0, np.broadcast_to(prefixes, count)[order])
        return shared
    assert ids is not None
    arrays = [np.asarray(ids[i]).astype(np.uint32) for i in order.tolist()]
    if [len(array) for array in arrays] != lengths[order].tolist():
        raise ConfigError(
            "ids must have the given lengths, but some documents are longer or shorter.",
            "Pass the documents' ids in the order of lengths.",
            setting="ids",
        )
    if count:
        groups = np.append(np.flatnonzero(begins), count)
        ends = offsets_of(lengths[order])
        shared[order] = plant(np.concatenate(arrays), ends, groups).shared
    return shared


def as_trees(plan: MicrobatchPlan, group: NDArray[np.int64], shared: NDArray[np.int64]) -> TreePlan:
    """Turn a plan with whole groups in each row into a plan of trees."""
    values = {name: getattr(plan, name) for name in MicrobatchPlan.__slots__}
    return TreePlan(**values, group=group, shared=shared)
