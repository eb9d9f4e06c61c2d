"""SourceCounts: row stage that counts tokens and documents per source of a mixture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampack.window.entries import HeldBlocks
from streampack.window.gather import Pieces
from streampack.window.packed_rows import PackedRows


@dataclass(frozen=True, slots=True)
class CountedSources:
    """Row stage that adds `PackedRows.by_source`.

    Attributes:
        sources: number of sources.
        whole: True to count every piece as a document, False to count the first pieces only.
    """

    sources: int
    whole: bool = False

    def __call__(self, rows: PackedRows, pieces: Pieces, held: HeldBlocks) -> PackedRows:
        """See `RowStage`."""
        begins = np.ones(len(rows.source_ids), bool) if self.whole else pieces.begins
        return rows._replace(by_source=count_sources(rows, begins, self.sources))

    def empty(self, rows: PackedRows) -> PackedRows:
        """See `RowStage`."""
        return rows


def count_sources(packed: PackedRows, begins: NDArray[np.bool_], sources: int) -> NDArray[np.int64]:
    """Count tokens, documents and loss tokens per source.

    Args:
        packed: a batch with D document pieces.
        begins: (D,) bool, True for the first piece of a document.
        sources: number of sources.

    Returns:
        (sources, 3) int64. Tokens include EOS that the packer inserted; the columns add up to the
        counts of the batch.
    """
    real, bounds, source = packed.piece >= 0, packed.boundaries, packed.source_ids
    starts = bounds[:-1][real]
    sizes = bounds[1:][real] - starts
    if packed.loss_mask is None:  # every token but the first of each attention segment
        first = np.zeros(len(packed.tokens) + 1, dtype=np.bool_)
        first[packed.cu_seqlens] = True
        learnt = sizes - first[starts]
    else:
        mask = packed.loss_mask.copy()
        mask[packed.cu_seqlens[:-1]] = False
        learnt = np.add.reduceat(mask, bounds[:-1], dtype=np.int64)[real]
    out = np.empty((sources, 3), dtype=np.int64)
    for column, values in enumerate((sizes, begins, learnt)):
        out[:, column] = np.bincount(source, values, sources)
    return out


def with_passes(rows: PackedRows, passes: list[int]) -> PackedRows:
    """Return the batch with the number of epochs of each source that its lane has read."""
    counts = rows.by_source
    assert counts is not None
    epochs = np.zeros(len(counts), dtype=np.int64)
    known = passes[: len(epochs)]  # a continued lane may have the counts of its old mixture
    epochs[: len(known)] = known
    return rows._replace(by_source=np.column_stack((counts, epochs)))
