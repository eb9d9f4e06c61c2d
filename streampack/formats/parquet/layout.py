"""Layouts of Parquet files that make reading slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streampack.formats.parquet.footer import row_groups
from streampack.formats.parquet.positions import open_file
from streampack.storage.files import LEAST_BYTES

if TYPE_CHECKING:
    from streampack.formats.parquet.source import Parquet

#: Rows of a small row group; bytes of one so large that several lanes wait for it.
_FEW_ROWS, _LARGE_GROUP = 512, 128 << 20


def slow_row_groups(source: Parquet) -> str:
    """Return the fault of the row groups of a source's first file, with a remedy; or ""."""
    with source.open_shard(0) as file, open_file(file) as opened:
        groups = row_groups(opened.metadata)
    rows, size = groups[0].num_rows, groups[0].total_byte_size
    if len(groups) > 1 and rows < _FEW_ROWS and size < LEAST_BYTES:
        return f"row groups of {rows:,} rows; row_group_size=4096 takes less time"
    if size >= _LARGE_GROUP:
        return (
            f"row groups of {size >> 20:,} MiB, each decoded into the cache by one process; "
            "use row_group_size=4096"
        )
    return ""
