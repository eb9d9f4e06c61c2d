"""Choice of the batch class by the rows of a batch."""

from __future__ import annotations

from streampack.batch.packed_batch import PackedBatch
from streampack.window.packed_rows import PackedRows


def kind_of(rows: PackedRows) -> type[PackedBatch]:
    """Return `PackedBatch`, or `TreeBatch` for rows of trees."""
    if "tree" not in rows.attached:
        return PackedBatch
    from streampack.trees.batch import TreeBatch

    return TreeBatch
