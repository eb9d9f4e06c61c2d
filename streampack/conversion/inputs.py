"""Stamps of a conversion's input, by which a continued conversion notices other documents.

The settings of a conversion have names and sizes of its files, which may hold other documents by
the time it is continued.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

from streampack.conversion.settings import Conversion
from streampack.file_info import split_url
from streampack.files.file_source import FileSource
from streampack.sources.indexed import InMemory

_ITEMS = 64  # items of a source in memory that are compared


def stamp_of(conversion: Conversion, part: int) -> str:
    """Return a digest of the versions of a part's input.

    These are the times at which local files were written, the versions of remote ones that the
    store lists, and some items of a source in memory.
    """
    source, reader = conversion.reader(part)
    digest = hashlib.blake2b(digest_size=8)
    inner = source._inner
    if isinstance(inner, InMemory):
        digest.update(_items(inner))
    elif isinstance(inner, FileSource):
        for version in _versions(inner, sorted({shard for shard, *_ in reader.pieces})):  # type: ignore[attr-defined]
            digest.update(version.encode() + b"\0")
    return digest.hexdigest()


def _versions(source: FileSource, shards: list[int]) -> Iterator[str]:
    for shard in shards:
        listed = source._listed_shard(shard)
        protocol, path = split_url(listed.path)
        yield listed.version if protocol else str(os.stat(path).st_mtime_ns)


def _items(source: Any) -> bytes:
    """Return some items as JSON; nothing if they are of other types."""
    count = len(source.data)
    chosen = {count * k // _ITEMS for k in range(_ITEMS)} | {count - 1} if count else set()
    try:
        items = [_rows(source, number) for number in sorted(chosen)]
        return json.dumps(items, default=lambda value: value.tolist()).encode()
    except (AttributeError, TypeError, ValueError):
        return b""


def _rows(source: Any, number: int) -> Any:
    if hasattr(source, "_rows"):  # a table
        return source._rows(number, number + 1).to_pylist()
    return list(source.items(number, number + 1))
