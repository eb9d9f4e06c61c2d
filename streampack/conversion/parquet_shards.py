"""Parquet shards of texts, or of ids and loss masks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streampack.conversion.shard_writer import Payload, ShardWriter, columns_of
from streampack.errors import ConfigError


class ParquetShards(ShardWriter):
    """Parquet shards with the column `text`, or `tokens` and, where there are masks, `loss_mask`,
    in row groups of 4,096 documents."""

    def check(self) -> None:
        """Raise `ConfigError` for a compression that Parquet does not know."""
        if self.compression not in (None, "zstd", "gz", "br", "snappy"):
            raise ConfigError(
                f'Parquet knows no compression "{self.compression}".',
                "The shards cannot be written.",
                "Use zstd, gz, br or snappy, or leave --compression out.",
            )

    def write(
        self, folder: Path, shard: int, first: int, documents: Sequence[Payload]
    ) -> tuple[Path, Any]:
        """Write ``part-00012.parquet``."""
        if self.dtype == "str":
            table = pa.table({"text": pa.array(documents, pa.large_string())})
        else:
            offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
            columns = columns_of(np.concatenate(documents))
            lists = [pa.LargeListArray.from_arrays(offsets, pa.array(c)) for c in columns.values()]
            table = pa.table(lists, names=list(columns))
        file = folder / f"part-{shard:05}.parquet"
        known = {None: "none", "gz": "gzip", "br": "brotli"}
        compression = known.get(self.compression, self.compression)
        pq.write_table(table, file, row_group_size=4096, compression=compression)
        return file, {"basename": file.name, "samples": len(documents)}
