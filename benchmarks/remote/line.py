"""The line of a store, while a corpus in eight files is read in twelve lanes.

- "first": seconds to the first sample (for us a batch of one row), with listing, without imports.
- "MB by then": received until then; "requests" as well.
- "MB/s": of the files, from the first sample to the end.
- "x": bytes received for all of it over the bytes of the files; "x of 4 hosts" (`peers`): by hosts
  with a cache each, without a limit of rate.
- "line": share of the time from the first sample to the last byte in which the line was full,
  without the times in which it was idle and no reader waited; these are "idle". For peers, all
  idle times count.
- "gaps": the longest times, in seconds, in which a reader waited and the line was idle.
- "longest": the longest wait of a reader for a block.
- "CPU": processor time after the first sample, in ms per MB, ours alone.

`peers` adds, for the first of `--megabytes`, the hosts and loaders of packages with their usual
calls, each in a process of its own; they need the environment "remote":
``python -m benchmarks.environments remote``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.environments import python_of
from benchmarks.remote import far
from benchmarks.remote.first import FILES
from benchmarks.remote.peers import ALONE, PEERS

HEAD = [
    "layout", "reader", "files, MB", "first, s", "MB by then", "requests", "MB/s", "x",
    "x of 4 hosts", "line", "idle, s", "gaps, s", "longest, s", "CPU, ms/MB",
]  # fmt: skip
MEGABYTES = [100.0]
HOSTS = 4
OURS = "streampack"
#: Layouts by which streampack is judged.
LINE = (".bin", ".npy", "Parquet", "Arrow", "MDS", "tar", ".jsonl")
_MOST_GAPS = 4


def rows(store: far.FarStore, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for name in options.layouts((*LINE, ".jsonl.zst") if options.job == "peers" else LINE):
        for megabytes in options.megabytes:
            with_peers = options.job == "peers" and megabytes == options.megabytes[0]
            url, size = store.corpus(name, megabytes, options.files or FILES)
            figures = far.run(store.slow, ["reading:read", name, url, True])
            shared = None
            if with_peers:
                shared = far.run(store.fast, ["reading:share", name, url, HOSTS])["epoch bytes"]
            yield _row(store, options, [name, OURS], size, figures, shared)
            for peer in PEERS.get(name, {}) if with_peers else ():
                try:
                    yield _row(
                        store, options, [name, peer], size, *_read_by(store, peer, name, url)
                    )
                except RuntimeError as error:
                    print(f"{peer} on {name}: {error}", file=sys.stderr)


def _read_by(store: far.FarStore, peer: str, name: str, url: str) -> tuple[Any, float | None]:
    """Return a peer's figures, and the bytes of its hosts."""
    python = python_of("remote")
    if python is None:
        raise RuntimeError("Peers need: python -m benchmarks.environments remote")
    prefix = url.rpartition("/")[2]
    if peer == "litdata" and not url.endswith("-litdata"):  # which wants an index beside the files
        far.run(store.fast, ["peers:index", str(store.base / prefix)], python=python)
        store.put(f"{prefix}-litdata", store.base / prefix)
        url = f"{url}-litdata"
    call = ["peers:read", name, peer, url]
    figures = far.run(store.slow, call, python=python)
    if peer in ALONE:
        return figures, None
    meeting = str(store.base / f"{peer}-{prefix}-meeting")
    hosts = [[*call, host, HOSTS, meeting] for host in range(HOSTS)]
    return figures, far.run(store.fast, *hosts, python=python)["epoch bytes"]


def _row(
    store: far.FarStore,
    options: argparse.Namespace,
    names: list[str],
    size: int,
    figures: dict[str, Any],
    shared: float | None,
) -> list[str]:
    waits = figures.get("epoch waits")
    line = store.slow.line(figures["first at"], waits)
    gaps = [gap for gap in line.gaps if gap[1] - gap[0] >= options.delay_s / 4]
    if options.trace:
        for begin, end in gaps:
            waiting = [
                block for since, until, block in waits or () if since < end and until > begin
            ]
            at = begin - figures["first at"]
            print(
                f"{names[0]}: idle at {at:.2f} s for {end - begin:.2f} s: {waiting}",
                file=sys.stderr,
            )
    longest = sorted((end - begin for begin, end in gaps), reverse=True)[:_MOST_GAPS]
    rate = size / 1e6 / max(figures["epoch s"] - figures["first s"], 1e-3)
    return [
        *names,
        f"{size / 1e6:,.0f}",
        f"{figures['first s']:.2f}",
        f"{figures['first bytes'] / 1e6:,.1f}",
        f"{figures['first requests']}",
        f"{rate:.1f}",
        f"{figures['epoch bytes'] / size:.2f}",
        "" if shared is None else f"{shared / size:.2f}",
        f"{line.share:.0%}",
        "" if waits is None else f"{line.idle_s:.1f}",
        " ".join(f"{gap:.1f}" for gap in longest),
        "" if not waits else f"{max(until - since for since, until, _ in waits):.1f}",
        f"{figures['epoch cpu'] * 1e9 / size:.1f}" if "epoch cpu" in figures else "",
    ]
