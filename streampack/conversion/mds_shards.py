"""MDS shards of texts, or of ids and loss masks; see `streampack.sources.mds.index`."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streampack.conversion.shard_writer import Payload, ShardWriter, columns_of
from streampack.documents.ragged import offsets_of
from streampack.errors import ConfigError


class _Codec(NamedTuple):
    """Levels that a compression has, none or from `least` to `most`, and what is taken if none is
    named."""

    least: int
    most: int
    default: int | None


_CODECS = {
    "zstd": _Codec(1, 22, 3),
    "gz": _Codec(0, 9, 9),
    "br": _Codec(0, 11, 11),
    "bz2": _Codec(1, 9, 9),
    "snappy": _Codec(0, -1, None),
}


class MDSShards(ShardWriter):
    """MDS shards with the column `text`, or `tokens` and, where there are masks, `loss_mask`."""

    def check(self) -> None:
        """Raise `ConfigError` for a compression that MDS does not know."""
        if self.compression is not None and _named(self.compression) is None:
            raise ConfigError(
                f'MDS knows no compression "{self.compression}".',
                "The shards cannot be written.",
                "Use zstd, gz, br, bz2 or snappy, with a level after a colon if wanted: zstd:9.",
            )

    def write(
        self, folder: Path, shard: int, first: int, documents: Sequence[Payload]
    ) -> tuple[Path, Any]:
        """Write ``shard.00012.mds``; what the index needs is its entry for the shard."""
        columns, samples = {"text": "str"}, [[document] for document in documents]
        if self.dtype != "str":
            parts = [columns_of(np.asarray(document)) for document in documents]
            columns = {name: f"ndarray:{part.dtype}" for name, part in sorted(parts[0].items())}
            samples = [[part[name] for name in columns] for part in parts]
        info: dict[str, Any] = {
            "column_encodings": list(columns.values()),
            "column_names": list(columns),
            "column_sizes": [None] * len(columns),
            "compression": self.compression,
            "format": "mds",
            "hashes": [],
            "size_limit": None,
            "version": 2,
        }
        stored = raw = _shard([[*map(_value, sample)] for sample in samples], info)
        name = f"shard.{shard:05}.mds"
        info |= {"raw_data": _described(name, raw), "samples": len(documents), "zip_data": None}
        if self.compression is not None:
            codec, _, _ = self.compression.partition(":")
            stored, name = _compressed(raw, self.compression), f"{name}.{codec}"
            info["zip_data"] = _described(name, stored)
        (folder / name).write_bytes(stored)
        return folder / name, info

    def index(self, shards: Sequence[Any]) -> tuple[str, bytes] | None:
        """``index.json``, of version 2."""
        content = {"version": 2, "shards": list(shards)}
        return "index.json", json.dumps(content, sort_keys=True).encode()


def _value(document: Payload) -> bytes:
    """Text in UTF-8; an array with its number of dimensions, their width, and its length."""
    if isinstance(document, str):
        return document.encode()
    count = len(document)
    width = int(np.searchsorted((1 << 8, 1 << 16, 1 << 32), count, side="right"))
    head = bytes((1 << 2 | width,)) + count.to_bytes(1 << width, "little")
    return head + document.astype(document.dtype.newbyteorder("<"), copy=False).tobytes()


def _shard(samples: Sequence[Sequence[bytes]], config: dict[str, Any]) -> bytes:
    """A shard of samples, with as many values of variable size each."""
    described = json.dumps(config, sort_keys=True).encode()
    sizes = np.array([[*map(len, sample)] for sample in samples], dtype="<u4")
    # Each begins with the sizes of its columns.
    offsets = offsets_of((sizes + np.int64(4)).sum(axis=1))
    offsets += 4 * (1 + len(offsets)) + len(described)
    parts = (part for pair in zip(sizes, samples, strict=True) for part in (pair[0].data, *pair[1]))
    table = np.concatenate(([len(samples)], offsets)).astype("<u4")
    return b"".join((table.data, described, *parts))


def _described(name: str, data: bytes) -> dict[str, Any]:
    return {"basename": name, "bytes": len(data), "hashes": {}}


def _named(compression: str) -> tuple[str, int | None] | None:
    """Codec and level of "zstd:9"; None if there is no such one."""
    name, colon, level = compression.partition(":")
    codec = _CODECS.get(name)
    if codec is None:
        return None
    if not colon:
        return name, codec.default
    known = level.isdecimal() and str(int(level)) == level
    return (name, int(level)) if known and codec.least <= int(level) <= codec.most else None


def _compressed(data: bytes, compression: str) -> bytes:
    """The same bytes for the same data, at any time."""
    named = _named(compression)
    assert named is not None
    name, level = named
    if name == "gz":
        return gzip.compress(data, level or 0, mtime=0)
    if name == "bz2":
        return bz2.compress(data, level or 9)
    import pyarrow

    codec = pyarrow.Codec({"br": "brotli"}.get(name, name), compression_level=level)
    compressed: bytes = codec.compress(data, asbytes=True)
    return compressed
