"""Open Parquet files, and the positions of their row groups; the latest are kept."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from streampack.formats.parquet.footer import row_groups
from streampack.formats.rows.offsets import Offsets
from streampack.keep_last import KeepLast
from streampack.storage.files import StoredFile

if TYPE_CHECKING:
    from streampack.formats.parquet.chunks import Chunks

_BUFFER_BYTES = 256 << 10  # bytes of a column read at a time, and behind a page

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
