"""The workloads as files, each written by its format's own writer with that writer's defaults."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.workloads import Workload

__all__ = [
    "jsonl_texts",
    "mds_shards",
    "npy_tars",
    "parquet_ids",
    "parquet_texts",
    "write_shards",
]

SHARD_BYTES = 1 << 25
TARS = 4
ROW_GROUP = 1024


def mds_shards(workload: Workload) -> Path:
    """A folder of MDS shards of 32 MiB with one column, `tokens`, `ndarray:uint16`."""
    return workload.file("mds", lambda folder: _write_mds(folder, workload.documents, SHARD_BYTES))


def write_shards(
    folder: Path, documents: int, seed: int = 0, *, shard_bytes: int = SHARD_BYTES
) -> int:
    """MDS shards of so many lognormal(6.0, 1.1) documents; returns their tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(np.exp(rng.normal(6.0, 1.1, documents)).astype(np.int64), 1)
    arrays = (rng.integers(0, 50_000, length, dtype=np.uint16) for length in lengths)
    _write_mds(folder, arrays, shard_bytes)
    return int(lengths.sum())


def npy_tars(workload: Workload) -> Path:
    """A folder of four tar shards of `.npy` members, uint16."""

    def members() -> Iterator[bytes]:
        for document in workload.documents:
            buffer = io.BytesIO()
            np.save(buffer, document)
            yield buffer.getvalue()

    return workload.file(
        "tars", lambda folder: _tars(folder, members(), "npy", len(workload.lengths))
    )


def parquet_ids(workload: Workload) -> Path:
    """A Parquet file with one column, `tokens`, list<int32>, in row groups of 1,024 documents."""

    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        column = pa.ListArray.from_arrays(
            pa.array(workload.offsets, type=pa.int32()),
            pa.array(workload.tokens.astype(np.int32)),
        )
        pq.write_table(pa.table({"tokens": column}), path, row_group_size=ROW_GROUP)

    return workload.file("tokens.parquet", write)


def jsonl_texts(workload: Workload, texts: list[str]) -> Path:
    """A file of JSON lines with a field `text`."""

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps({"text": text}) + "\n" for text in texts)

    return workload.file("texts.jsonl", write)


def parquet_texts(workload: Workload, texts: list[str]) -> Path:
    """A Parquet file with a column `text`."""

    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": texts}), path, row_group_size=ROW_GROUP)

    return workload.file("texts.parquet", write)


def _write_mds(folder: Path, documents: Iterable[NDArray[np.uint16]], shard_bytes: int) -> None:
    from tests.support.mosaic import streaming_module

    with (
        streaming_module("base.format.mds") as mds,
        mds.MDSWriter(
            out=str(folder), columns={"tokens": "ndarray:uint16"}, size_limit=shard_bytes
        ) as out,
    ):
        for document in documents:
            out.write({"tokens": document})


def _tars(folder: Path, members: Iterable[bytes], extension: str, count: int) -> None:
    folder.mkdir()
    numbered = enumerate(members)
    each = -(-count // TARS)
    for shard in range(TARS):
        with tarfile.open(folder / f"shard-{shard:03}.tar", "w") as archive:
            for number, data in islice(numbered, each):
                member = tarfile.TarInfo(f"{number:08}.{extension}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
