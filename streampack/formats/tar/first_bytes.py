"""Fetch the first bytes of parts of remote archives, before their lanes read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streampack.files.first_bytes import PART_BYTES, of_parts
from streampack.storage.listing import is_pipe

if TYPE_CHECKING:
    from streampack.formats.tar.source import WebDataset
    from streampack.sources.manifest import Piece


def of_archives(source: WebDataset, pieces: Sequence[Piece]) -> None:
    """Fetch the heads of archives and, of those that are not compressed, the parts' first bytes."""
    files = [piece for piece in pieces if not is_pipe(source.manifest.paths[piece[0]])]
    of_parts(source, files)
    for shard, low, high in files:
        listed = source._listed_shard(shard)
        if source.manifest.weights[shard] == listed.num_bytes:  # a compressed one weighs more
            source.storage.prefetch(listed, low, min(high, low + PART_BYTES))
