"""Choice of the batch class, so that runs without trees never import `TreeBatch`."""

from __future__ import annotations

from streampack.batch.packed_batch import PackedBatch
from streampack.window.packed_rows import PackedRows


def kind_of(rows: PackedRows) -> type[PackedBatch]:
    """Return `PackedBatch`, or `TreeBatch` for rows of trees."""
    if rows.tree is None:
        return PackedBatch
    from streampack.batch.tree_batch import TreeBatch

    return TreeBatch
