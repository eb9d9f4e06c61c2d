"""tree_rows: rows of trees with the columns and fields of the trees' sequences.

Cost: some numpy calls per batch, over the tokens of its sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, offsets_of
from streampack.documents.fields import FieldSpec
from streampack.groups.rows import by_member, columns_of, concatenated, groups_of
from streampack.trees.build import SLOT
from streampack.trees.columns import TreeColumns
from streampack.window.entries import HeldBlocks
from streampack.window.gather import Pieces
from streampack.window.packed_rows import PackedRows


@dataclass(frozen=True, slots=True)
class TreeRows:
    """Row stage that makes the sequences of trees the pieces; see `tree_rows`.

    Attributes:
        types: declared fields of sequences; sources: number of sources of a mixture, or 0.
        divided: pieces hold trees of a record, one or several.
    """

    types: FieldSpec
    sources: int
    divided: bool = False

    def __call__(self, rows: PackedRows, pieces: Pieces, held: HeldBlocks) -> PackedRows:
        """See `RowStage`."""
        groups = groups_of(pieces, held)
        number = np.arange(len(groups))
        if self.divided:
            number = np.repeat(pieces.document, [*map(len, groups)])
            rows = by_member(rows, groups)
            groups = [sequences for trees in groups for sequences in _sequences(trees)]
        return tree_rows(rows, groups, number, self.types, sources=self.sources)

    def empty(self, rows: PackedRows) -> PackedRows:
        """See `RowStage`."""
        nothing = np.zeros(0, dtype=np.int32)
        return rows._replace(
            token_fields={
                **rows.token_fields,
                **{n: np.zeros(0, dtype=t) for n, t in self.types.token.items()},
            },
            document_fields={n: np.zeros(0, dtype=t) for n, t in self.types.document.items()},
            attached=with_tree(
                rows,
                TreeColumns(nothing, np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.bool_)),
            ),
        )


def _sequences(trees: Documents) -> Iterator[Documents]:
    """Yield the sequences of each tree."""
    assert trees.members is not None
    for low, high in pairwise(trees.members.offsets.tolist()):
        yield trees.members.documents[low:high]


def tree_rows(
    packed: PackedRows,
    trees: Sequence[Documents],
    number: NDArray[np.int64],
    types: FieldSpec,
    *,
    sources: int,
) -> PackedRows:
    """Return the rows with the sequences of trees as pieces.

    Args:
        packed: rows of D pieces, each of them a tree.
        trees: sequences of each tree (D,).
        number: (D,) an id of each tree's group, equal for trees of one group.
        types: declared fields of the run that each sequence has; the rows have the others.
        sources: number of sources of a mixture; 0 for a single source.
    """
    count = np.array([len(tree) for tree in trees], dtype=np.int64)
    lengths = concatenated([tree.lengths for tree in trees], np.int64)
    ends = offsets_of(lengths)
    held = [slice(int(tree.offsets[0]), int(tree.offsets[-1])) for tree in trees]
    start = packed.boundaries[:-1][packed.piece >= 0].astype(np.int64)
    slot = concatenated(
        [
            tree.token_fields[SLOT][tokens_of_tree]
            for tree, tokens_of_tree in zip(trees, held, strict=True)
        ],
        np.int32,
    )
    slot += np.repeat(start, np.diff(ends[offsets_of(count)])).astype(np.int32)
    counted = concatenated(
        [
            np.ones(tokens_of_tree.stop - tokens_of_tree.start, np.bool_) if tree.loss_mask is None
            else tree.loss_mask[tokens_of_tree]
            for tree, tokens_of_tree in zip(trees, held, strict=True)
        ],
        np.bool_,
    )  # fmt: skip
    counted[ends[:-1]] = False  # a sequence's first token has no context, so no loss
    depth = np.zeros(len(packed.tokens), dtype=np.int64)
    depth[slot] = np.arange(len(slot)) - np.repeat(ends[:-1], lengths)
    placed, above = packed.composition.placed, int(depth.sum())
    columns = columns_of(packed, trees, number, lengths, types)
    by_source = None
    if sources:
        of_sequence = columns["source_ids"]
        of_tree = of_sequence[offsets_of(count)[:-1]]
        sizes = np.diff(packed.boundaries)[packed.piece >= 0]
        learnt = np.diff(np.append(0, np.cumsum(counted))[ends])
        by_source = np.column_stack(
            [
                np.bincount(of_tree, sizes, sources),
                np.bincount(of_sequence, minlength=sources),
                np.bincount(of_sequence, learnt, sources),
            ]
        ).astype(np.int64)
    return packed._replace(
        **columns,
        loss_mask=None,
        num_loss_tokens=int(counted.sum()),
        sum_squared_lengths=2 * above + placed,
        composition=replace(
            packed.composition,
            segments=len(lengths),
            documents=len(lengths),
            documents_cut=0,
            context_sum=above,
            shared=len(slot) - placed,
        ),
        token_fields={
            **packed.token_fields,
            **{
                name: concatenated(
                    [
                        tree.token_fields[name][tokens_of_tree]
                        for tree, tokens_of_tree in zip(trees, held, strict=True)
                    ],
                    dtype,
                )
                for name, dtype in types.token.items()
            },
        },
        by_source=by_source,
        attached=with_tree(packed, TreeColumns(slot, ends.astype(np.int32), counted)),
    )


def with_tree(rows: PackedRows, tree: TreeColumns) -> dict[str, Any]:
    """Return the attached parts of the rows, with the tree.

    The runs of such rows are trees, `token_fields` with one number per token have the sequences'
    tokens (N,), and other (D,) columns have one entry per sequence.
    """
    return {**rows.attached, "tree": tree}
