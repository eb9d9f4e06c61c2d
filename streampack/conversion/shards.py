"""Parquet shards of texts, or of ids and loss masks; the same documents give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack.errors import ConfigError

#: Content of one document: token ids, `masked_ids`, or text.
Payload = NDArray[np.generic] | str
#: Bytes a document takes besides its content, for cutting shards to size.
OVERHEAD = 16
ROW_GROUP_DOCUMENTS = 4096
COMPRESSIONS = ("zstd", "gzip", "brotli", "snappy", "lz4")


def masked_ids(ids: NDArray[np.generic], loss_mask: NDArray[np.bool_]) -> NDArray[np.generic]:
    """(T,) ids with their loss mask, as records of both."""
    both = np.empty(len(ids), dtype=[("tokens", ids.dtype), ("loss_mask", np.uint8)])
    both["tokens"], both["loss_mask"] = ids, loss_mask
    return both


def check_shards(shard_bytes: int, compression: str | None) -> None:
    """Raise `ConfigError` unless shards can be so large, and Parquet knows the compression."""
    if shard_bytes < 1:
        raise ConfigError(
            f"A shard is to hold {shard_bytes} bytes.",
            "No document would fit.",
            "Pass a size such as 64MiB.",
        )
    if compression not in (None, *COMPRESSIONS):
        raise ConfigError(
            f'Parquet knows no compression "{compression}".',
            "The shards cannot be written.",
            f"Use {', '.join(COMPRESSIONS)}, or leave it out.",
        )


def write_shard(
    folder: Path, shard: int, documents: Sequence[Payload], compression: str | None
) -> Path:
    """Write ``part-00012.parquet`` with the column `text`, or `tokens` and, where there are masks,
    `loss_mask`, in row groups of 4,096 documents; returns the file."""
    if isinstance(documents[0], str):
        table = pa.table({"text": pa.array(documents, pa.large_string())})
    else:
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        ids: NDArray[Any] = np.concatenate(documents)
        columns = {name: ids[name] for name in ids.dtype.names or ()} or {"tokens": ids}
        lists = [pa.LargeListArray.from_arrays(offsets, pa.array(c)) for c in columns.values()]
        table = pa.table(lists, names=list(columns))
    file = folder / f"part-{shard:05}.parquet"
    pq.write_table(
        table, file, row_group_size=ROW_GROUP_DOCUMENTS, compression=compression or "none"
    )
    return file
