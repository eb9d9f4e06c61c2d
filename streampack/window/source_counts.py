"""What a batch holds of each source of a mixture, as counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack.window.packed_rows import PackedRows


def count_sources(packed: PackedRows, begins: NDArray[np.bool_], sources: int) -> NDArray[np.int64]:
    """Tokens, documents and loss tokens of each source.

    Args:
        packed: a batch with D document pieces.
        begins: (D,), True for the first piece of a document.
        sources: how many there are.

    Returns:
        (sources, 3) int64. Tokens include EOS that the packer inserted; the columns add up to what
        the batch says of all sources together.
    """
    real, bounds, source = packed.piece >= 0, packed.boundaries, packed.source_ids
    starts = bounds[:-1][real]
    sizes = bounds[1:][real] - starts
    if packed.loss_mask is None:  # all but the first token of each attention segment
        first = np.zeros(len(packed.tokens) + 1, dtype=np.bool_)
        first[packed.cu_seqlens] = True
        learnt = sizes - first[starts]
    else:
        mask = packed.loss_mask.copy()
        mask[packed.cu_seqlens[:-1]] = False
        learnt = np.add.reduceat(mask, bounds[:-1], dtype=np.int64)[real]
    out = np.empty((sources, 3), dtype=np.int64)
    for column, of in enumerate((sizes, begins, learnt)):
        out[:, column] = np.bincount(source, of, sources)
    return out


def with_passes(rows: PackedRows, passes: list[int]) -> PackedRows:
    """A batch that says how many epochs of each source its lane has read."""
    counts = rows.by_source
    assert counts is not None
    own = np.zeros(len(counts), dtype=np.int64)
    known = passes[: len(own)]  # a lane goes on under other settings with those of its old mixture
    own[: len(known)] = known
    return rows._replace(by_source=np.column_stack((counts, own)))
