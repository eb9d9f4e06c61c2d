"""Open Parquet files, and the positions of their row groups on the weight of a file."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack.documents.blocks import offsets_of
from streampack.formats.parquet.footer import row_groups
from streampack.keep_last import KeepLast
from streampack.storage.files import StoredFile

if TYPE_CHECKING:
    from streampack.formats.parquet.chunks import Chunks, RowGroup

_BUFFER_BYTES = 1 << 20  # bytes of a column read at a time

# A dictionary may be too small for the values of a row group, if it has several chunks.
_NARROW = re.compile(r"indices=u?int(8|16)\b")


def open_file(file: StoredFile, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open a file: mapped if it is local, else read by range, a buffer of each column at a time.

    Arrow's own read-ahead is off: its threads would buffer whole row groups.

    Args:
        file: the file.
        metadata: the file's footer, if it is known.
    """
    return pq.ParquetFile(
        pa.BufferReader(file.array(0, file.num_bytes))
        if file.mapped
        else pa.PythonFile(file.stream(), "r"),
        metadata=metadata,
        buffer_size=0 if file.mapped else _BUFFER_BYTES,
        page_checksum_verification=True,
        pre_buffer=False,
    )


_footers: KeepLast[Hashable, tuple[pq.FileMetaData, Offsets]] = KeepLast(8)  # megabytes each
_chunks: KeepLast[Hashable, Chunks] = KeepLast(64)


def footer_of(file: StoredFile, weight: int) -> tuple[pq.FileMetaData, Offsets]:
    """Return a file's footer and its row groups' positions on `weight`; cache the latest files."""

    def read() -> tuple[pq.FileMetaData, Offsets]:
        with open_file(file) as opened:
            metadata = opened.metadata
            if _NARROW.search(str(opened.schema_arrow)):
                from streampack.formats.parquet.narrow import footer_without_dictionaries

                metadata = footer_without_dictionaries(file)
            return metadata, Offsets.of(row_groups(metadata), weight)

    return _footers.keep((file.version, weight), read)


def chunks_of(file: StoredFile, columns: Sequence[str]) -> Chunks:
    """Return the byte ranges of a remote file's columns; cache the latest files."""
    from streampack.formats.parquet.chunks import read_chunks

    return _chunks.keep((file.version, *columns), lambda: read_chunks(file, columns))


@dataclass(frozen=True, slots=True, eq=False)
class Offsets:
    """Positions of a file's row groups and rows on its weight, as if a group's rows were equal.

    Attributes:
        rows: (G + 1,) int64, rows before each group.
        weights: (G + 1,) int64, weight before each group.
        sizes: (G,) int64, bytes of each group.
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, groups: Sequence[pq.RowGroupMetaData | RowGroup], weight: int) -> Offsets:
        """Divide the file's weight among its row groups, in proportion to their bytes."""
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
        """Return the indices of the groups with rows in [start, stop)."""
        some = (self.rows[:-1] < stop) & (self.rows[1:] > start)
        return [int(number) for number in np.flatnonzero(some)]

    def shares(self, groups: Sequence[int], stop: int) -> dict[int, float]:
        """Return the part of each group, from its beginning, that has the rows up to `stop`."""
        bounds = [(int(self.rows[number]), int(self.rows[number + 1])) for number in groups]
        return {
            number: (min(stop, end) - first) / max(end - first, 1)
            for number, (first, end) in zip(groups, bounds, strict=True)
        }

    def row(self, at: int) -> int:
        """Return the first row that begins at a position of the weight or after it."""
        if at <= 0 or len(self.rows) == 1:
            return 0
        group = int(np.searchsorted(self.weights, at, side="right")) - 1
        row, inside = int(self.rows[group]), at - int(self.weights[group])
        if inside == 0 or group == len(self.rows) - 1:
            return row
        weight = int(self.weights[group + 1] - self.weights[group])
        return row - -inside * (int(self.rows[group + 1]) - row) // weight

    def about(self, row: int) -> int:
        """Return the position on the weight at which a row begins."""
        group = max(int(np.searchsorted(self.rows, row, side="left")) - 1, 0)
        rows = max(int(self.rows[group + 1] - self.rows[group]), 1)
        weight = int(self.weights[group + 1] - self.weights[group])
        return int(self.weights[group]) + weight * (row - int(self.rows[group])) // rows
