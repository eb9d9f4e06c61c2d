"""What a batch holds of each source of a mixture, as counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack.window.packed_rows import PackedRows

__all__ = ["count_sources", "with_passes"]


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
    real = packed.piece >= 0
    starts, sizes = packed.boundaries[:-1][real], np.diff(packed.boundaries)[real]
    if packed.loss_mask is None:  # all but the first token of each attention segment
        learnt: NDArray[np.int64] = sizes - np.isin(starts, packed.cu_seqlens, assume_unique=True)
    else:
        mask = packed.loss_mask.copy()
        mask[packed.cu_seqlens[:-1]] = False
        learnt = np.add.reduceat(mask, packed.boundaries[:-1], dtype=np.int64)[real]
    source = packed.source_ids
    columns = (np.bincount(source, of, sources) for of in (sizes, begins, learnt))
    return np.stack(list(columns), axis=1).astype(np.int64)


def with_passes(rows: PackedRows, passes: list[int]) -> PackedRows:
    """A batch that says how many epochs of each source its lane has read."""
    counts = rows.by_source
    assert counts is not None
    own = np.zeros(len(counts), dtype=np.int64)
    known = passes[: len(own)]  # a lane goes on under other settings with those of its old mixture
    own[: len(known)] = known
    return rows._replace(by_source=np.column_stack((counts, own)))
