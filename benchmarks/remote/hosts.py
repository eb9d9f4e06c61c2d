"""Bytes of an epoch on hosts with a cache each, over the bytes of the files.

Corpora in one file and in eight are cut once into the parts of 12 lanes, and read by the hosts, one
after the other, without a limit of rate. "x of 4" is of four hosts; "counted" are the blocks that
their parts touch by `benchmarks.remote.epoch`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import pairwise

from benchmarks.remote import far
from benchmarks.remote.corpora import LAYOUTS
from benchmarks.remote.epoch import SIMULATED, Spans, simulated
from benchmarks.remote.reading import LANES

HOSTS = (1, 4)
HEAD = [
    "layout", "files, MB", "files", *(name for n in HOSTS for name in (f"x of {n}", "counted")),
]  # fmt: skip
MEGABYTES = [100.0]


def rows(store: far.FarStore, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for name in options.layouts(LAYOUTS):
        for count in (1, 8):
            url, size = store.corpus(name, options.megabytes[0], count)
            bounds = [size * lane // LANES for lane in range(LANES + 1)]
            spans: Spans = [[part] for part in pairwise(bounds)]
            cells = []
            for hosts in HOSTS:
                read = far.run(store.fast, ["reading:share", name, url, hosts])["epoch bytes"]
                sizes, reads = [size // count] * count, SIMULATED.get(name)
                counted = reads and f"{simulated(reads, sizes, spans, hosts):.2f}"
                cells += [f"{read / size:.2f}", counted or ""]
            yield [name, f"{size / 1e6:,.0f}", str(count), *cells]
