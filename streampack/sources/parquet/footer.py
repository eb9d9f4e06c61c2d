"""Footers of Parquet files: what a listing needs to know of a file, read by ranges.

A footer is untrusted: nothing is read for it that the file has no bytes for, and one that does not
add up is described instead of raised, so that whoever comes to read the file decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.sources.parquet.column_chunks import Chunk, DamagedFooterError, column_chunks
from streampack.sources.parquet.columns import is_text, is_token_list
from streampack.storage.remote import shown
from streampack.storage.storage import FileInfo, Storage
from streampack.storage.unpacking import map_file

__all__ = ["Footer", "check_schema", "footer_bytes", "read_footer"]

_FIRST_READ = 64 << 10
_LARGEST_FOOTER = 1 << 30


@dataclass(frozen=True, slots=True)
class Footer:
    """What the listing keeps of a file; `problem` says why there is nothing to keep.

    Attributes:
        rows: of the file; values, size: of the wanted column, `size` in bytes before compression.
        narrow: whether uint16 holds its ids, by their type; small: the same by its statistics.
    """

    rows: int = 0
    values: int = 0
    size: int = 0
    narrow: bool = True
    small: bool = True
    problem: str = ""


def read_footer(
    storage: Storage, info: FileInfo, column: str, check: Callable[[str, pa.Schema], bool]
) -> Footer:
    """Read a file's footer.

    Args:
        storage: where the file is; info: which.
        column: the wanted one.
        check: refuses a schema of that file, or says whether uint16 holds its ids by their type.
    """
    size = info.num_bytes
    if size < 12:
        return Footer(problem=f"it has only {size} bytes")
    tail = storage.read_range(info.path, max(0, size - _FIRST_READ), size)
    if tail[-4:] != b"PAR1":
        return Footer(problem="it does not end in a Parquet footer")
    length = int.from_bytes(tail[-8:-4], "little")
    if length > min(size - 12, _LARGEST_FOOTER):
        return Footer(problem=f"its footer would have {length} of its {size} bytes")
    if length + 8 > len(tail):
        tail = storage.read_range(info.path, size - length - 8, size)
    footer = np.frombuffer(tail[-length - 8 : -8], dtype=np.uint8)
    try:
        metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + tail[-length - 8 :]))
        return _kept(metadata, footer, info, column, check)
    except (pa.ArrowException, OSError, DamagedFooterError, UnicodeDecodeError) as error:
        return Footer(problem=f"its footer is broken ({error})")  # the last one: names


def footer_bytes(path: str) -> NDArray[np.uint8]:
    """(B,) bytes of the footer of a local file that pyarrow has opened."""
    data = map_file(Path(path))
    length = int.from_bytes(data[-8:-4].tobytes(), "little")
    return data[len(data) - 8 - length : len(data) - 8]


def _kept(
    metadata: pq.FileMetaData,
    footer: NDArray[np.uint8],
    info: FileInfo,
    column: str,
    check: Callable[[str, pa.Schema], bool],
) -> Footer:
    """What the listing keeps of a footer."""
    schema = metadata.schema.to_arrow_schema()
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    if any(count < 0 for count in rows) or sum(rows) != metadata.num_rows:
        return Footer(problem="its row groups do not add up to its rows")
    narrow = check(info.path, schema)
    chunks = [chunk for group in column_chunks(metadata, footer, [column]) for chunk in group]
    for chunk in chunks:
        if not 0 <= chunk.compressed_bytes <= info.num_bytes:
            return Footer(problem=f"column {column} is larger than the file")
        if chunk.num_values < 0 or chunk.uncompressed_bytes < 0:
            return Footer(problem=f"column {column} has a size below zero")
    return Footer(
        rows=metadata.num_rows,
        values=sum(chunk.num_values for chunk in chunks),
        size=sum(chunk.uncompressed_bytes for chunk in chunks),
        narrow=narrow,
        small=narrow or all(map(_small, chunks)),
    )


def _small(chunk: Chunk) -> bool:
    """Whether uint16 holds all ids of a chunk, by its statistics.

    Ids below zero and large ones that were compared as such are large without their sign.
    """
    if chunk.num_values == 0:
        return True
    if not chunk.physical_type or chunk.smallest is None or chunk.largest is None:
        return False
    size = 4 if chunk.physical_type == "INT32" else 8
    if not len(chunk.smallest) == len(chunk.largest) == size:
        return False
    low, high = (int.from_bytes(bound, "little") for bound in (chunk.smallest, chunk.largest))
    return low <= high < 1 << 16


def check_schema(
    name: str, schema: pa.Schema, column: str, loss_mask: str | None, tokenized: bool
) -> bool:
    """Refuse a file that lacks a column or has it in another type; True if uint16 holds it."""
    there = ", ".join(f'"{field.name}" ({field.type})' for field in schema)
    for wanted in (column, loss_mask):
        if wanted is not None and schema.get_field_index(wanted) < 0:
            raise ConfigError(
                f'{shown(name)} has no column "{wanted}", or has it more than once.',
                f"Its columns are {there}.",
                "Pass the right one as text= (strings) or tokens= (lists of token ids).",
            )
    kind = schema.field(column).type
    if not (is_token_list(kind) if tokenized else is_text(kind)):
        expected = "lists of integers" if tokenized else "strings"
        raise ConfigError(
            f'The column "{column}" of {shown(name)} is {kind}.',
            f"It should hold {expected}.",
            f"Pass text= for strings and tokens= for token ids. The columns are {there}.",
        )
    if loss_mask is not None:
        mask = schema.field(loss_mask).type
        if not is_token_list(mask) and not (
            hasattr(mask, "value_type") and pa.types.is_boolean(mask.value_type)
        ):
            raise ConfigError(
                f'The column "{loss_mask}" of {shown(name)} is {mask}.',
                "A loss mask is a list of booleans per document.",
                f"Pass the right column. The columns are {there}.",
            )
    return tokenized and kind.value_type in (pa.uint8(), pa.uint16())
