"""Open Parquet files, and where their row groups lie on the weight of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack.documents.blocks import offsets_of
from streampack.sources.parquet.footer import row_groups

_KEPT = 4  # footers


def open_file(path: Path, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A file of local storage, mapped; not buffered ahead, which threads of Arrow would do."""
    return pq.ParquetFile(
        str(path),
        metadata=metadata,
        memory_map=True,
        page_checksum_verification=True,
        pre_buffer=False,
    )


class Footers:
    """Footers of the files that were opened last, since a file has many parts.

    Another process knows none.
    """

    def __init__(self) -> None:
        self._footers: dict[tuple[int, ...], pq.FileMetaData] = {}
        self._places: dict[tuple[int, int], tuple[pq.FileMetaData, Places]] = {}

    def __reduce__(self) -> Any:
        return Footers, ()

    def of(self, path: Path) -> pq.FileMetaData:
        """The footer of a file."""
        status = path.stat()
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if key not in self._footers:
            kept = [*self._footers.items()][-_KEPT:]
            with open_file(path) as file:
                self._footers = {**dict(kept), key: file.metadata}
        return self._footers[key]

    def places(self, footer: pq.FileMetaData, weight: int) -> Places:
        """Where the row groups lie of a file whose footer is kept."""
        key = (id(footer), weight)
        if key not in self._places:
            kept = [*self._places.items()][-_KEPT:]
            found = Places.of(row_groups(footer), weight)
            self._places = {**dict(kept), key: (footer, found)}
        return self._places[key][1]


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
