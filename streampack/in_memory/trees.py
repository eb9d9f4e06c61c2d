"""Groups of documents in memory as trees: how many slots each takes, and its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampack.documents.blocks import Documents, joined_groups, offsets_of
from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError
from streampack.in_memory.microbatches import MicrobatchPlan
from streampack.packing.overflow import as_array
from streampack.trees.build import plant, planted
from streampack.trees.rows import TreeRows
from streampack.window.gather import RowFormat
from streampack.window.provenance import Provenance


@dataclass(frozen=True, slots=True, eq=False)
class TreePlan(MicrobatchPlan):
    """Which groups each rank has as trees in each of its micro-batches. Made by `pack`.

    Attributes:
        group: (N,) int64, the tree of each document.
        shared: (N,) int64, tokens of a document that need no slot of their own.
    """

    group: NDArray[np.int64]
    shared: NDArray[np.int64]

    @property
    def shared_tokens(self) -> int:
        """Tokens that need no slot of their own."""
        return int(self.shared.sum())

    def _slots(self) -> NDArray[np.int64]:
        return self.lengths - self.shared

    def _format(self, pad_id: int, fields: FieldTypes) -> RowFormat:
        stages = (Provenance(), TreeRows(fields.with_groups(), 0))
        return RowFormat(pad_id=pad_id, eos_id=-1, stages=stages)

    def _block(self, block: Documents, numbers: NDArray[np.int64]) -> Documents:
        """The documents of a row as trees.

        Raises:
            ConfigError: one has less in common with others of its group than was planned.
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
                f"Document {i} does not begin with the {self.shared[i]} tokens of its group that "
                "were planned.",
                "Pass the lengths of what the documents of a group begin with alike, or ids=.",
                setting="prefix",
            )
        return planted(joined_groups(block, groups))


def shared_tokens(
    lengths: NDArray[np.int64],
    group: NDArray[np.int64],
    ids: Sequence[Any] | None,
    prefix: ArrayLike | None,
) -> NDArray[np.int64]:
    """(N,) int64: tokens of each document that need no slot of their own.

    Args:
        lengths, group: (N,) of the documents.
        ids: of the documents, from which that is found; or
        prefix: how many tokens the documents of a group begin with alike, one number for all or for
            each document.

    Raises:
        ConfigError: none or both are given, or one does not fit the lengths.
    """
    count = len(lengths)
    if (ids is None) == (prefix is None):
        raise ConfigError(
            "Trees need to know what the documents of a group begin with alike.",
            "Pass either ids=, the documents, or prefix=, the length of the prompt of each.",
            setting="prefix",
        )
    order = np.argsort(group, kind="stable")
    begins = np.append(True, group[order][1:] != group[order][:-1])[:count]
    shared = np.zeros(count, dtype=np.int64)
    if prefix is not None:
        given = as_array(prefix)
        fits = given.shape in ((), (count,)) and given.dtype.kind in "iu"
        if not fits or (given < 0).any() or (given > lengths).any():
            raise ConfigError(
                f"prefix has the shape {given.shape} and dtype {given.dtype}, or a number that is "
                "more than the tokens of a document.",
                "Pass one whole number, or one for each document.",
                setting="prefix",
            )
        shared[order] = np.where(begins, 0, np.broadcast_to(given, count)[order])
        return shared
    assert ids is not None
    arrays = [np.asarray(ids[i]).astype(np.uint32) for i in order.tolist()]
    if [len(array) for array in arrays] != lengths[order].tolist():
        raise ConfigError(
            "ids are not those of the lengths.",
            "Pass as many for each document, in the same order.",
            setting="ids",
        )
    if count:
        groups = np.append(np.flatnonzero(begins), count)
        ends = offsets_of(lengths[order])
        shared[order] = plant(np.concatenate(arrays), ends, groups).shared
    return shared


def as_trees(plan: MicrobatchPlan, group: NDArray[np.int64], shared: NDArray[np.int64]) -> TreePlan:
    """A plan of documents whose rows hold whole groups."""
    values = {name: getattr(plan, name) for name in MicrobatchPlan.__slots__}
    return TreePlan(**values, group=group, shared=shared)
