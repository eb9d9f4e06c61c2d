"""Starts with few and with many small files.

Files of 2,048 ids each are read in two lanes by a process of its own with an empty cache, with
windows of 16 rows of 256 tokens, so that a first batch needs about as many files whether there are
ten or thousands.

- "prepared": seconds, KB and requests of the listing and the looks at a sample of the files (MDS:
  of its index, which is parsed too).
- "first": the same from there to the first batch; "CPU, s" of both.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.remote import corpora, far
from benchmarks.remote.reading import Stages, warm
from streampack import PackedDataset, PackedLoader, Topology, WindowConfig, sources

HEAD = [
    "format", "files", "prepared, s", "KB", "requests", "first, s", "KB", "requests", "CPU, s",
]  # fmt: skip
COUNTS = [10, 8000]
FORMATS = ("Parquet", "Arrow", "Megatron", ".jsonl", ".npy", ".bin", "tar", "MDS")
_DOCUMENTS, _LENGTH = 8, 256  # of each file
_LANES = 2


def rows(store: far.FarStore, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for name in options.layouts(FORMATS):
        for count in options.counts:
            prefix = f"{name.strip('.')}-{count}-small"
            (store.base / prefix).mkdir()
            shape = count * _DOCUMENTS, _LENGTH
            ids = np.random.default_rng(0).integers(1, 50_000, shape, np.uint16)
            corpora.write(corpora.LAYOUTS[name], list(ids), count, store.base / prefix)
            store.put(prefix)
            start = far.run(store.slow, ["starts:start", name, f"{store.store.url}/{prefix}"])
            cells, before = [], {"bytes": 0, "requests": 0}
            for stage in ("prepared", "first"):
                now = {name: start[f"{stage} {name}"] for name in before}
                cells += [
                    f"{start[f'{stage} s']:.2f}",
                    f"{(now['bytes'] - before['bytes']) / 1e3:,.0f}",
                    f"{now['requests'] - before['requests']}",
                ]
                before = now
            yield [name, f"{count:,}", *cells, f"{start['first cpu']:.2f}"]


def start(name: str, url: str) -> Stages:
    """Start a run."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        warm(name, Path(base))
        cpu_began, began = time.process_time(), time.perf_counter()
        storage = sources.Storage(cache_dir=Path(base) / "cold")
        source = corpora.LAYOUTS[name].source(url, storage)
        source.prepare()
        yield "prepared", {"s": time.perf_counter() - began}
        began = time.perf_counter()
        dataset = PackedDataset(
            source,
            seq_len=_LENGTH,
            lanes=_LANES,
            window=WindowConfig(rows=16),
            topology=Topology(),
        )
        next(iter(PackedLoader(dataset)))
        cpu_s = time.process_time() - cpu_began
        yield "first", {"s": time.perf_counter() - began, "cpu": cpu_s}
