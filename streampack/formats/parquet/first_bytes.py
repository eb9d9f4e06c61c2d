"""Fetch the first bytes of parts of remote Parquet files, before their lanes read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from streampack.files.first_bytes import PART_BYTES
from streampack.formats.parquet.positions import Offsets, chunks_of

if TYPE_CHECKING:
    from streampack.formats.parquet.source import Parquet
    from streampack.sources.manifest import Piece
    from streampack.storage.files import StoredFile


def of_columns(source: Parquet, pieces: Sequence[Piece]) -> None:
    """Fetch the footers of shards, and the first bytes of the parts' columns."""

    def ranges(shard: int, low: int, high: int, file: StoredFile) -> Iterator[tuple[int, int]]:
        # A thread that calls pyarrow while the interpreter shuts down would end the process.
        chunks = chunks_of(file, source.wanted_columns)
        positions = Offsets.of(chunks.row_groups, int(source.manifest.weights[shard]))
        groups = positions.groups(positions.row(low), positions.row(high))
        if source.where is not None:
            groups = source.where.groups(file, groups)
        room = PART_BYTES
        for start, end, group in zip(chunks.starts, chunks.ends, chunks.groups, strict=True):
            if group in groups:
                yield start, min(end, start + room)
                room -= end - start
                if room <= 0:
                    return

    for piece in pieces:
        listed = source._listed_shard(piece[0])
        source.storage.prefetch_ranges(listed, partial(ranges, *piece))
