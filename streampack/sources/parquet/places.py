"""Open Parquet files, and where their row groups lie on the weight of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack.documents.blocks import offsets_of
from streampack.sources.parquet.footer import row_groups


def open_file(path: Path, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A file of local storage, mapped; not buffered ahead, which threads of Arrow would do."""
    return pq.ParquetFile(
        str(path),
        metadata=metadata,
        memory_map=True,
        page_checksum_verification=True,
        pre_buffer=False,
    )


def footer_of(path: Path, weight: int) -> tuple[pq.FileMetaData, Places]:
    """The footer of a file, and where its row groups lie on this weight; the last ones are kept."""
    status = path.stat()
    return _footer_of(path, weight, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4)
def _footer_of(path: Path, weight: int, *_version: int) -> tuple[pq.FileMetaData, Places]:
    with open_file(path) as file:
        return file.metadata, Places.of(row_groups(file.metadata), weight)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the row groups of a file lie on its weight, and their rows, as if those were equal.

    Attributes:
        rows: (G + 1,) int64, rows before each group.
        weights: (G + 1,) int64, the weight before each.
        sizes: (G,) int64, bytes of each.
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, groups: Sequence[pq.RowGroupMetaData], weight: int) -> Places:
        """Each group has its part of the file's weight, by its bytes."""
        kept = [(group.num_rows, max(group.total_byte_size, 1)) for group in groups]
        before, total = [0], max(sum(size for _, size in kept), 1)
        for _, size in kept:
            before.append(before[-1] + size)
        weights = np.array([weight * size // total for size in before], dtype=np.int64)
        if not kept:
            weights[-1] = weight
        sizes = np.array([group.total_byte_size for group in groups], dtype=np.int64)
        return cls(offsets_of(np.array([rows for rows, _ in kept], dtype=np.int64)), weights, sizes)

    def groups(self, start: int, stop: int) -> list[int]:
        """The numbers of the groups that have some of these rows."""
        some = (self.rows[:-1] < stop) & (self.rows[1:] > start)
        return [int(number) for number in np.flatnonzero(some)]

    def row(self, at: int) -> int:
        """The first row that begins at a place of the weight or after it."""
        if at <= 0 or len(self.rows) == 1:
            return 0
        group = int(np.searchsorted(self.weights, at, side="right")) - 1
        row, inside = int(self.rows[group]), at - int(self.weights[group])
        if inside == 0 or group == len(self.rows) - 1:
            return row
        weight = int(self.weights[group + 1] - self.weights[group])
        return row - -inside * (int(self.rows[group + 1]) - row) // weight

    def about(self, row: int) -> int:
        """Where a row begins."""
        group = max(int(np.searchsorted(self.rows, row, side="left")) - 1, 0)
        rows = max(int(self.rows[group + 1] - self.rows[group]), 1)
        weight = int(self.weights[group + 1] - self.weights[group])
        return int(self.weights[group]) + weight * (row - int(self.rows[group])) // rows
