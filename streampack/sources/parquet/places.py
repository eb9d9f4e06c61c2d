"""Open Parquet files, and where their row groups lie on the weight of a file."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack.documents.blocks import offsets_of
from streampack.sources.parquet.footer import row_groups
from streampack.storage.files import LocalFile, StoredFile

_BUFFER_BYTES = 1 << 20  # that are read of a column at a time
_KEPT_FOOTERS = 4
_footers: OrderedDict[Any, tuple[pq.FileMetaData, Places]] = OrderedDict()


def open_file(file: StoredFile, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A file: mapped if it is local, else read by range, a buffer of each column at a time.

    Not buffered ahead, which threads of Arrow would do, with whole row groups.
    """
    local = isinstance(file, LocalFile)
    return pq.ParquetFile(
        str(file.path) if isinstance(file, LocalFile) else pa.PythonFile(file.stream(0), "r"),
        metadata=metadata,
        memory_map=local,
        buffer_size=0 if local else _BUFFER_BYTES,
        page_checksum_verification=True,
        pre_buffer=False,
    )


def footer_of(file: StoredFile, weight: int) -> tuple[pq.FileMetaData, Places]:
    """The footer of a file, and where its row groups lie on this weight; the last ones are kept."""
    key = (file.version, weight)
    found = _footers.pop(key, None)
    if found is None:
        with open_file(file) as opened:
            found = opened.metadata, Places.of(row_groups(opened.metadata), weight)
    _footers[key] = found
    while len(_footers) > _KEPT_FOOTERS:
        _footers.popitem(last=False)
    return found


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
