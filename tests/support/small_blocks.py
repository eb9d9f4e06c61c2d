"""Blocks of remote files that are so small that small corpora have many of them."""

from __future__ import annotations

from typing import Any

from streampack.formats.parquet import positions
from streampack.formats.tar import headers
from streampack.storage import blocks, fetching, growing, plans, ranged_file, remote_files

__all__ = ["BLOCK_BYTES", "small_blocks"]

BLOCK_BYTES = 256


def small_blocks(setattr: Any) -> None:
    """Set the sizes with `setattr` of `monkeypatch`."""
    for module in (blocks, fetching, growing, ranged_file, remote_files, plans):
        setattr(module, "BLOCK_BYTES", BLOCK_BYTES)
    setattr(headers, "_BLOCK_BYTES", BLOCK_BYTES)
    setattr(headers, "_WINDOW_BYTES", 600)
    setattr(positions, "_BUFFER_BYTES", 300)
