"""What cannot be cut where it lies, in one lane and in twelve: ``python -m benchmarks.layouts``.

Each layout is one file of lognormal(6.0, 1.1) ids. A run reads all of it in one process, with an
empty cache, from warm files. It prints nanoseconds of processor time (user and system) per token,
the seconds to the first batch, and how often something was decoded into the cache. "without" is a
cache that is too small: every part is decoded from the beginning of its file.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tarfile
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import markdown_table
from streampack import PackedDataset, Topology, sources

Documents = list[Any]


def row_group(path: Path, documents: Documents) -> None:
    """All rows in one row group, as pandas and pyarrow write up to a million."""
    table = pa.table({"tokens": pa.array(documents, pa.list_(pa.uint16()))})
    pq.write_table(table, path, row_group_size=len(documents))


def lines(path: Path, documents: Documents) -> None:
    """Lists of ids, as JSON."""
    codec = {".gz": "gzip", ".zst": "zstd"}[path.suffix]
    with pa.output_stream(str(path), compression=codec) as file:
        for ids in documents:
            file.write(json.dumps({"tokens": ids.tolist()}).encode() + b"\n")


def archive(path: Path, documents: Documents) -> None:
    """A member per document, as numpy saves it."""
    with (
        pa.output_stream(str(path), compression="gzip") as file,
        tarfile.open(fileobj=file, mode="w|") as tar,
    ):
        for i, ids in enumerate(documents):
            data = BytesIO()
            np.save(data, ids)
            member = tarfile.TarInfo(f"{i:07d}.npy")
            member.size = len(data.getvalue())
            tar.addfile(member, BytesIO(data.getvalue()))


LAYOUTS: dict[str, tuple[Callable[[Path, Documents], None], Any, float]] = {
    "one-row-group.parquet": (row_group, sources.Parquet, 1.0),
    "lines.jsonl.gz": (lines, sources.JSONL, 0.1),
    "lines.jsonl.zst": (lines, sources.JSONL, 0.1),
    "samples.tar.gz": (archive, sources.WebDataset, 0.25),
}


#: Lanes, and bytes of the cache.
RUNS = ((1, 64 << 30), (1, 64 << 30), (12, 64 << 30), (12, 1))


class Counter(logging.Handler):
    """Counts what is decoded into the cache."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count one, maybe."""
        self.count += "decoded into the cache" in record.getMessage()


def read(path: Path, kind: Any, lanes: int, cache: Path, limit: int) -> tuple[float, float, float]:
    """Processor seconds per token, seconds to the first batch, tokens."""
    storage = sources.Storage(cache_dir=cache, cache_limit_bytes=limit)
    source = kind(path, tokens="npy" if kind is sources.WebDataset else "tokens", storage=storage)
    began, before, first, tokens = time.perf_counter(), sum(os.times()[:2]), 0.0, 0
    dataset = PackedDataset(source, seq_len=1024, lanes=lanes, topology=Topology())
    for batch in dataset:
        first = first or time.perf_counter() - began
        tokens += batch.num_tokens
    return (sum(os.times()[:2]) - before) / tokens, first, tokens


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=float, default=40e6, help="of the largest layout")
    arguments = parser.parse_args()
    counter = Counter()
    logger = logging.getLogger("streampack.storage.cache")
    logger.addHandler(counter)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    rng = np.random.default_rng(0)
    rows = []
    for name, (write, kind, part) in LAYOUTS.items():
        wanted = int(arguments.tokens * part)
        lengths = rng.lognormal(6.0, 1.1, max(wanted // 740, 1)).astype(np.int64).clip(1, 16_000)
        documents = [rng.integers(1, 50_000, n, np.uint16) for n in lengths]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            write(path, documents)
            cells = []
            decoded = 0
            for number, (lanes, limit) in enumerate(RUNS):
                counter.count = 0
                seconds, first, tokens = read(path, kind, lanes, Path(folder) / f"{number}", limit)
                if number:  # the first one warms up
                    cells += [f"{seconds * 1e9:.1f}", *([f"{first:.2f}"] if limit > 1 else [])]
                decoded += counter.count
            rows.append([name, f"{tokens / 1e6:.0f} M", *cells, str(decoded)])
    head = ["file", "tokens", "1 lane", "first, s", "12 lanes", "first, s", "12 without", "decoded"]
    print(markdown_table(head, rows))


if __name__ == "__main__":
    main()
