"""The formats that shards are written in."""

from __future__ import annotations

from streampack.conversion.mds_shards import MDSShards
from streampack.conversion.parquet_shards import ParquetShards
from streampack.conversion.shard_writer import ShardWriter
from streampack.conversion.tar_shards import TarShards
from streampack.errors import ConfigError

_WRITERS: dict[str, type[ShardWriter]] = {
    "mds": MDSShards,
    "webdataset": TarShards,
    "parquet": ParquetShards,
}


def shard_writer(to: str, dtype: str, compression: str | None) -> ShardWriter:
    """What writes shards of "uint16" or "uint32" ids, or of "str".

    Raises:
        ConfigError: there is no such format.
    """
    if to not in _WRITERS:
        raise ConfigError(
            f'"{to}" is not a format to convert to.',
            "There is no writer for it.",
            f"Use {', '.join(_WRITERS)}.",
        )
    return _WRITERS[to](dtype, compression)
