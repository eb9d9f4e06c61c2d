"""Footers of Parquet files: a file's schema, rows and bytes, read without its data.

A footer is untrusted. Only pyarrow's accessors of files, schemas and row groups are used.
`RowGroupMetaData.column()`, which everything about a single column needs, ends the process on about
one in a hundred flipped bits of a footer, because nothing catches its exceptions. The others, and
reading itself, raised an error or worked on every flipped bit
(tests/formats/test_damage.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from streampack.file_info import FileInfo
from streampack.formats.rows.schemas import DAMAGE, ENCRYPTED
from streampack.sources.records import DamagedFileError
from streampack.storage.storage import Storage

_FIRST_READ, _BLOCK_BYTES = 64 << 10, 256 << 10  # blocks are of remote files
_MOST_BYTES = 1 << 48  # limit per file, since the bytes of all files are summed in 64 bits


@dataclass(frozen=True, slots=True)
class Footer:
    """The facts that the listing keeps of a file.

    Attributes:
        rows: number of rows; -1 if the footer cannot be read.
        num_bytes: bytes of all columns, encoded, before compression.
        schema: schema of the file; None if the footer cannot be read.
        problem: a clause with the fault of the file; "" if there is none.
    """

    rows: int = -1
    num_bytes: int = 0
    schema: pa.Schema | None = None
    problem: str = ""


def read_footer(storage: Storage, info: FileInfo) -> Footer:
    """Read a file's footer, of a remote file by blocks, which its readers need too."""
    size = info.num_bytes
    if size < 12:
        return Footer(rows=-1 if size else 0, problem=f"it has only {size} bytes")
    with storage.open(info) as file:
        tail = file.read(size - min(_FIRST_READ, max(size % _BLOCK_BYTES, 12)), size)
        length = int.from_bytes(tail[-8:-4], "little")
        if len(tail) - 8 < length <= size - 12:
            tail = file.read(size - length - 8, size)
    if tail[-4:] == b"PARE":
        return Footer(problem=ENCRYPTED)
    if tail[-4:] != b"PAR1":
        return Footer(problem="it does not end in a Parquet footer")
    if length > size - 12:
        return Footer(problem=f"its footer would have {length} of its {size} bytes")
    try:
        metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + tail[-length - 8 :]))
        schema = metadata.schema.to_arrow_schema()
        groups = row_groups(metadata)
    except DAMAGE as error:
        return Footer(problem=f"its footer is broken ({error})")
    num_bytes = sum(group.total_byte_size for group in groups)
    return Footer(metadata.num_rows, num_bytes, schema)


def row_groups(metadata: pq.FileMetaData) -> list[pq.RowGroupMetaData]:
    """Return the row groups of a file.

    Raises:
        DamagedFileError: their rows or bytes do not add up to the file's.
    """
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = [group.num_rows for group in groups]
    sizes = [group.total_byte_size for group in groups]
    if sum(rows) != metadata.num_rows or sum(sizes) > _MOST_BYTES or min([*rows, *sizes, 0]) < 0:
        raise DamagedFileError("its row groups do not add up to the file")
    return groups
