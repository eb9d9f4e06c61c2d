"""One row of the documents of a micro-batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.documents.ragged import offsets_of
from streampack.packing.plan import Plan
from streampack.window.buffer import TokenBuffer
from streampack.window.gather import RowFormat, gather_rows
from streampack.window.packed_rows import PackedRows
from streampack.window.planned import PlannedWindow


def packed_row(
    documents: Documents, gaps: NDArray[np.int64], width: int, layout: RowFormat
) -> PackedRows:
    """The documents one after the other, each with so many slots of padding after it (D,)."""
    count, lengths = len(documents), documents.lengths
    buffer = TokenBuffer(int((lengths + gaps).sum()))
    buffer.append(documents, 0, lengths, serial=0, round=0)
    plan = Plan.plain(
        np.array([0, count]), width, np.arange(count), np.zeros(count, dtype=np.int64),
        lengths, np.zeros(count, dtype=np.int64),
    )  # fmt: skip
    planned = PlannedWindow(
        plan=replace(plan, pad_after=gaps),
        rows=np.zeros(1, dtype=np.int64),
        batches=np.array([0, 1]),
        position=offsets_of(lengths),
        lengths=lengths,
    )
    (rows,) = gather_rows(planned, width, buffer, layout)
    return rows
