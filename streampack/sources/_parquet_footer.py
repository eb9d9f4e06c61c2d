"""Footers of Parquet files: what a listing needs to know of a file, read by ranges.

A footer is untrusted: nothing is read for it that the file has no bytes for, and one that does not
add up is described instead of raised, so that whoever comes to read the file decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from streampack.errors import ConfigError
from streampack.sources.arrow import is_text, is_token_list
from streampack.sources.remote import shown
from streampack.sources.storage import FileInfo, Storage

__all__ = ["Footer", "check_schema", "read_footer"]

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
    try:
        metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + tail[-length - 8 :]))
        return _kept(metadata, info, column, check)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last one: names
        return Footer(problem=f"its footer is broken ({error})")


def _kept(
    metadata: pq.FileMetaData,
    info: FileInfo,
    column: str,
    check: Callable[[str, pa.Schema], bool],
) -> Footer:
    """What the listing keeps of a footer."""
    schema = metadata.schema.to_arrow_schema()
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    if any(g.num_rows < 0 for g in groups) or sum(g.num_rows for g in groups) != (
        metadata.num_rows
    ):
        return Footer(problem="its row groups do not add up to its rows")
    narrow = check(info.path, schema)
    values = column_bytes = 0
    for group in groups:
        for i in range(group.num_columns):
            chunk = group.column(i)
            if not 0 <= chunk.total_compressed_size <= info.num_bytes:
                return Footer(problem=f"column {chunk.path_in_schema} is larger than the file")
            if chunk.path_in_schema.split(".")[0] == column:
                values += chunk.num_values
                column_bytes += chunk.total_uncompressed_size
    small = narrow or _small(metadata, column)
    return Footer(metadata.num_rows, values, column_bytes, narrow, small)


def _small(metadata: pq.FileMetaData, column: str) -> bool:
    """Whether the statistics of a column say that it holds ids, and uint16 all of them."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunks = map(group.column, range(group.num_columns))
        wanted = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] == column]
        if not wanted:
            return False
        for chunk in wanted:
            known = chunk.statistics
            if chunk.num_values and not (known is not None and known.has_min_max):
                return False
            if chunk.num_values and not (
                isinstance(known.min, int) and 0 <= known.min <= known.max < 1 << 16
            ):
                return False
    return True


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
