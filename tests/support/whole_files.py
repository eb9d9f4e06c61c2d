"""Files that cannot be cut where they lie, one of each layout."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import feather

from streampack import sources
from tests.support.corpora import write_mds as write_mds_shards

#: Files of this size or more are decoded into the cache in tests.
SMALL_BYTES = 1 << 16


@cache
def documents() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, 60_000, n).tolist() for n in rng.integers(1, 500, 300)]


def write_lines(path: Path, codec: str | None) -> None:
    data = "".join(json.dumps({"tokens": ids}) + "\n" for ids in documents()).encode()
    with pa.output_stream(str(path), compression=codec) as file:
        file.write(data)


def write_tar(path: Path, codec: str | None) -> None:
    with (
        pa.output_stream(str(path), compression=codec) as file,
        tarfile.open(fileobj=file, mode="w|") as tar,
    ):
        for i, ids in enumerate(documents() * 2):
            data = BytesIO()
            np.save(data, np.array(ids, dtype=np.uint16))
            member = tarfile.TarInfo(f"{i:05d}.npy")
            member.size = len(data.getvalue())
            tar.addfile(member, BytesIO(data.getvalue()))


def write_rows(path: Path, codec: str) -> None:
    table = pa.table({"tokens": pa.array(documents(), pa.list_(pa.int32()))})
    pq.write_table(table, path, compression=codec)
    assert pq.ParquetFile(path).num_row_groups == 1


def write_batch(path: Path, codec: str) -> None:
    table = pa.table({"tokens": pa.array(documents(), pa.list_(pa.int32()))})
    feather.write_feather(table, path, compression=codec)


def write_mds(path: Path, codec: str) -> None:
    arrays = [np.array(ids, dtype=np.uint16) for ids in documents()]
    write_mds_shards(path.parent, arrays, "tokens", size_limit=1 << 26, compression=codec)


LAYOUTS: dict[str, tuple[Callable[..., None], Any, str]] = {
    "lines.jsonl.gz": (write_lines, sources.JSONL, "gzip"),
    "lines.jsonl.zst": (write_lines, sources.JSONL, "zstd"),
    "samples.tar.gz": (write_tar, sources.WebDataset, "gzip"),
    "samples.tar.zst": (write_tar, sources.WebDataset, "zstd"),
    "batch.feather": (write_batch, sources.Arrow, "zstd"),
    "mds": (write_mds, sources.MDS, "zstd"),
    "rows.parquet": (write_rows, sources.Parquet, "zstd"),
}


def small_files_count(set_attribute: Callable[[str, int], None]) -> None:
    """Have small files be decoded into the cache as large ones are."""
    for module in (
        "storage.decoded",
        "formats.parquet.source",
        "formats.arrow.batches",
        "formats.tar.archives",
    ):
        set_attribute(f"streampack.{module}.LEAST_BYTES", SMALL_BYTES)
