"""Epochs of a run with a cache of half of the corpus: bytes of each, over the size of the files.

A corpus in eight files is read in twelve lanes, without a limit of rate.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator

import numpy as np

from benchmarks.remote import far
from benchmarks.remote.corpora import LAYOUTS
from benchmarks.remote.first import FILES
from benchmarks.remote.line import LINE
from benchmarks.remote.reading import LANES, SEQ_LEN, Stages
from streampack import PackedDataset, PackedLoader, Topology, sources

EPOCHS = 3
HEAD = [
    "layout", "files, MB", "cache", *(f"x of epoch {k + 1}" for k in range(EPOCHS)),
]  # fmt: skip
MEGABYTES = [400.0]  # lanes hold 20 MB of files that are read in part, whatever the corpus has
SHARES = (0.5, 0.8)
_EVERY = 64  # batches between two looks at the bytes


def rows(store: far.FarStore, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for name in options.layouts(LINE):
        url, size = store.corpus(name, options.megabytes[0], options.files or FILES)
        for share in SHARES:
            figures = far.run(store.fast, ["second_epoch:read", name, url, int(share * size)])
            epochs = [f"{served / size:.2f}" for served in figures["epochs served"]]
            yield [name, f"{size / 1e6:,.0f}", f"{share:.0%}", *epochs]


def read(name: str, url: str, limit_bytes: int) -> Stages:
    """Read the epochs; every one has the same number of tokens."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        storage = sources.Storage(cache_dir=cache, cache_limit_bytes=limit_bytes)
        source = LAYOUTS[name].source(url, storage)
        dataset = PackedDataset(
            source, seq_len=SEQ_LEN, lanes=LANES, topology=Topology(), epochs=EPOCHS
        )
        loader, counts, tokens = PackedLoader(dataset), [(0, 0)], 0
        for number, batch in enumerate(loader):
            tokens += batch.num_tokens
            if number % _EVERY == 0:
                counts.append((tokens, loader.metrics().times.fetched_bytes))
        counts.append((tokens, loader.metrics().times.fetched_bytes))
    tokens, served = np.array(counts).T
    ends = np.searchsorted(tokens, tokens[-1] * np.arange(1, EPOCHS + 1) / EPOCHS)
    by_epoch = np.diff(served[ends], prepend=0).tolist()
    yield "epochs", {"served": by_epoch}
