"""Choice of the batch class by the rows of a batch."""

from __future__ import annotations

from streampack.batch.packed_batch import PackedBatch
from streampack.leaves import BATCHES, load
from streampack.window.packed_rows import PackedRows


def kind_of(rows: PackedRows) -> type[PackedBatch]:
    """Return `PackedBatch`, or the class of a leaf for rows with its part."""
    for name, kind in BATCHES.items():
        if name in rows.attached:
            batch_class: type[PackedBatch] = load(kind)
            return batch_class
    return PackedBatch
