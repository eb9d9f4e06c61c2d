"""Fetch the first bytes of parts of remote shards, before their lanes read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streampack.files.file_source import FileSource
    from streampack.files.flat import FlatSource
    from streampack.sources.manifest import Piece

#: Bytes of a part that are fetched.
PART_BYTES = 4 << 20

_HEAD_BYTES = 1 << 20  # of a shard, which reading it begins with


def of_parts(source: FileSource, pieces: Sequence[Piece]) -> None:
    """Fetch where the parts begin; the heads of shards in which that byte is unknown."""
    for shard, low, high in pieces:
        listed, begin = source._listed_shard(shard), source.weight_begin(shard)
        if begin is None:
            begin = _HEAD_BYTES
        else:
            stop = begin + min(high, low + PART_BYTES)
            source.storage.prefetch(listed, max(begin + low - 1, 0), stop)
        if begin:
            source.storage.prefetch(listed, 0, begin)


def of_indexed_parts(source: FlatSource, pieces: Sequence[Piece]) -> None:
    """Fetch the heads of the shards' indexes, too."""
    for shard, _, _ in pieces:
        if index := source.index_of(shard):
            source.storage.prefetch(index, 0, _HEAD_BYTES)
    of_parts(source, pieces)
