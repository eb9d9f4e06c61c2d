"""First batches, of a corpus in eight files.

- "first": seconds to the first batch, listing included, imports and kernels not.
- "round trips": requests that followed one another until the last one that a reader waited for,
  from a store without a limit of rate.
- "MB", "requests": received and made by then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.remote import far
from benchmarks.remote.corpora import LAYOUTS
from benchmarks.slow_store import SlowStore, round_trips

HEAD = ["layout", "files, MB", "first, s", "round trips", "MB", "requests"]
MEGABYTES = [100.0]
FILES = 8


def rows(store: far.FarStore, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for name in options.layouts(LAYOUTS):
        url, size = store.corpus(name, options.megabytes[0], options.files or FILES)
        waiting = far.run(store.waiting, ["reading:read", name, url, False])
        if options.trace:
            trace(store.waiting, waiting)
        ended = max((until for _, until, _ in waiting["first waits"]), default=waiting["first at"])
        trips = round_trips(store.waiting.asked, ended)
        first = far.run(store.slow, ["reading:read", name, url, False])
        yield [
            name,
            f"{size / 1e6:,.0f}",
            f"{first['first s']:.2f}",
            f"{trips}",
            f"{first['first bytes'] / 1e6:.1f}",
            f"{first['first requests']}",
        ]


def trace(store: SlowStore, figures: dict[str, Any]) -> None:
    """Print each request and each wait of a reader, in order, in seconds from the begin."""
    began = figures["first at"] - figures["first s"]
    asked = [(one.asked_s, f"{one.path.rpartition('/')[2]} {one.range}") for one in store.asked]
    waits = [
        (low, f"waits {high - low:.2f} s for {block}")
        for low, high, block in figures["first waits"]
    ]
    for at, event in sorted([*asked, *waits]):
        if at <= figures["first at"]:
            print(f"{at - began:7.2f} s: {event}", file=sys.stderr)
