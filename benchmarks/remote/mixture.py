"""Mixtures of many sources under 1,024 descriptors, without a limit of rate.

A corpus of token ids, of one size whatever the number of its sources: a folder of four `.npy` files
is a source. Twelve lanes of one process read an epoch of all sources, with an empty cache. The last
rows limit the cache to a quarter of the corpus.

- "first": seconds to the first batch, the listings of all sources included, imports not.
- "CPU ns": processor time per token after the first batch, all threads.
- "MiB": memory of the process at its highest, beyond that at its beginning; "of them mapped":
  blocks of the cache, which the system drops when it needs the memory.
- "descriptors": the most that were open at a time.
- "x": bytes received over the bytes of the files.
- "cache": the most that it held, over its limit.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import layouts
from benchmarks.remote import corpora, far
from benchmarks.remote.reading import LANES, SEQ_LEN, Stages, warm
from streampack import PackedDataset, PackedLoader, Topology, sources

HEAD = [
    "sources", "cache limit, MB", "first, s", "CPU ns", "MiB", "of them mapped", "descriptors", "x",
    "cache",
]  # fmt: skip
MEGABYTES = [400.0]
COUNTS = [1, 10, 30, 100]
_FILES = 4  # of a source
_DESCRIPTORS = 1024
_LOOK_S = 0.25


def rows(store: far.FarStore, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    size = options.megabytes[0] * 1e6
    sizes: dict[int, int] = {}
    for count in options.counts:
        for number in range(count):
            folder = store.base / f"{count}-sources" / f"{number:03}"
            folder.mkdir(parents=True)
            documents = layouts.lognormal(size / 2 / count)
            order = np.random.default_rng(number).permutation(len(documents))  # other files
            documents = [documents[k] for k in order]
            corpora.write(corpora.LAYOUTS[".npy"], documents, _FILES, folder)
        sizes[count] = store.put(f"{count}-sources")
    for limit in (10 * size, size / 4):
        for count in options.counts:
            url = f"{store.store.url}/{count}-sources"
            figures = far.run(store.fast, ["mixture:read", count, url, int(limit)])
            yield [
                str(count),
                f"{limit / 1e6:,.0f}",
                f"{figures['epoch first']:.2f}",
                f"{figures['epoch cpu'] * 1e9:.0f}",
                f"{figures['epoch memory'] / 1024:,.0f}",
                f"{figures['epoch mapped'] / 1024:,.0f}",
                f"{figures['epoch descriptors']:.0f}",
                f"{figures['epoch bytes'] / sizes[count]:.2f}",
                f"{figures['epoch cache'] / limit:.2f}",
            ]


def _look(cache: Path) -> np.ndarray[Any, Any]:
    """Return KiB of memory and of mapped files, descriptors, and bytes of the cache, as of now."""
    memory = [layouts.status(name) for name in ("VmRSS", "RssFile")]
    descriptors = len(os.listdir("/proc/self/fd"))
    return np.array([*memory, descriptors, sum(map(_size, cache.rglob("*")))])


def _size(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:  # evicted
        return 0


def read(count: int, url: str, limit_bytes: int) -> Stages:
    """Read an epoch of all sources."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        warm(".npy", Path(base))
        storage = sources.Storage(cache_dir=Path(base) / "cold", cache_limit_bytes=limit_bytes)
        before, began, tokens = _look(Path(base)), time.perf_counter(), 0
        before[2:], most = 0, before
        mixed = {
            f"{number:03}": corpora.LAYOUTS[".npy"].source(f"{url}/{number:03}", storage)
            for number in range(count)
        }
        mixture = sources.Mixture(mixed)
        dataset = PackedDataset(mixture, seq_len=SEQ_LEN, lanes=LANES, topology=Topology())
        looked_s = 0.0
        for batch in PackedLoader(dataset):
            if not tokens:
                first_s, cpu_began = time.perf_counter() - began, time.process_time()
            tokens += int(batch.num_tokens)
            if time.monotonic() > looked_s + _LOOK_S:
                before_look = time.process_time()
                most, looked_s = np.maximum(most, _look(Path(base) / "cold")), time.monotonic()
                cpu_began += time.process_time() - before_look
        cpu_s = time.process_time() - cpu_began
        names = ("memory", "mapped", "descriptors", "cache")
        figures = dict(zip(names, map(float, most - before), strict=True))
        yield "epoch", {"first": first_s, "cpu": cpu_s / tokens, **figures}
