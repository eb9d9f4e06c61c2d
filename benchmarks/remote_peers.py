"""Streaming peers on files in an S3 store 30 ms away that sends 50 MB/s.

``python -m benchmarks.remote_peers``: one corpus of token ids in each layout, in eight files, read
by us in twelve lanes and by peers with their usual calls, each in a process of its own with an
empty cache. The proxy `benchmarks.slow_store` before the store counts.

- "first": seconds to the first sample (for us a batch of one row), with listing, without imports.
- "MB by then": received until then.
- "MB/s": of the files, from the first sample to the end.
- "x": bytes received for all of it over the bytes of the files; "x of 4 hosts": by hosts with a
  cache each, without a limit of rate.
- "line": share of the time from the first sample to the last byte in which the line was full, and
  the gaps of a quarter of the delay or more, in seconds.
- "CPU": processor time after the first sample, in ms per MB, ours alone.

With ``--bytes-per-s 2.5e6 --delay-s 0.6``, a twentieth of the rate and twenty times the delay, the
processor limits nothing, and "line" tells how well requests are planned.

Peers need the environment "remote": ``python -m benchmarks.environments remote``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import layouts, remote
from benchmarks.environments import python_of
from benchmarks.layouts import Documents
from benchmarks.remote_readers import FILES
from benchmarks.report import print_table
from benchmarks.slow_store import SlowStore

OURS = "streampack"
#: On one machine its hosts would share memory by names, and fail.
ALONE = ("mosaicml-streaming",)


def _in_files(
    write: Callable[[Path, Documents], None], ending: str
) -> Callable[[Path, Documents], None]:
    """The documents in several files, as ``0.ending``, ``1.ending``, ..."""

    def write_all(folder: Path, documents: Documents) -> None:
        for number in range(FILES):
            inner = folder / f"part-{number}"
            inner.mkdir()
            write(inner, documents[number::FILES])
            (file,) = inner.iterdir()
            file.rename(folder / f"{number}{ending}")
            inner.rmdir()

    return write_all


class Corpus(NamedTuple):
    """The writer of a layout, its name in `remote.LAYOUTS`, bytes per id, and its peers."""

    write: Callable[[Path, Documents], None]
    ours: str
    id_bytes: float
    peers: tuple[str, ...]


CORPORA = {
    ".jsonl": Corpus(_in_files(layouts.lines(None), ".jsonl"), ".jsonl", 6.8, ("datasets-jsonl",)),
    ".jsonl.zst": Corpus(
        _in_files(layouts.lines("zst"), ".jsonl.zst"), ".jsonl.zst", 3.2, ("datasets-jsonl.zst",)
    ),
    "Parquet": Corpus(
        _in_files(remote.parquet(1000), ".parquet"),
        "Parquet, groups of 1,000 rows",
        4.0,
        ("datasets-parquet", "litdata"),
    ),
    "Arrow": Corpus(_in_files(layouts.arrow_stream, ".arrow"), "Arrow", 2.0, ()),
    ".npy": Corpus(_in_files(remote.flat("a.npy"), ".npy"), ".npy", 2.0, ()),
    ".bin": Corpus(_in_files(remote.flat("a.bin"), ".bin"), ".bin", 2.0, ()),
    "tar": Corpus(_in_files(layouts.archive(None), ".tar"), "tar", 3.0, ("webdataset",)),
    "MDS": Corpus(layouts.mds(6 << 20), "MDS", 2.0, ("mosaicml-streaming",)),
}


def _environment(slow: SlowStore) -> dict[str, str]:
    endpoint = f"http://127.0.0.1:{slow.port}"
    named = {"AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint}
    return {**os.environ, **named}


def _run(commands: list[list[str]], slow: SlowStore, timeout_s: float = 600) -> dict[str, float]:
    """Return the figures of processes that run at the same time, and the store's counts."""
    slow.served.clear()
    processes = [
        subprocess.Popen(
            command, env=_environment(slow), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for command in commands
    ]
    found: dict[str, float] = {}
    try:
        for stage in ("first", "epoch"):
            for process in processes:
                assert process.stdin is not None
                assert process.stdout is not None
                while not (line := process.stdout.readline()).startswith(b"{"):
                    if not line:
                        raise RuntimeError(f"it ends with status {process.wait(timeout_s)}")
                found |= json.loads(line)
                if process is processes[0] or stage == "epoch":
                    found |= {f"{stage} {what}": n for what, n in slow.served.items()}
                    found[f"{stage} at"] = time.monotonic()
                process.stdin.write(b"\n")
                process.stdin.flush()
    finally:
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return found


def _commands(reader: str, layout: str, url: str, scratch: Path) -> tuple[list[str], list[Any]]:
    """Commands of one process with all of a corpus, and of hosts that share it."""
    if reader == OURS:
        ours = [sys.executable, "-m", "benchmarks.remote"]
        name = CORPORA[layout].ours
        return [*ours, "--read", name, url], [[*ours, "--share", name, url]]
    python = python_of("remote")
    if python is None:
        raise SystemExit("Peers need: python -m benchmarks.environments remote")
    command = [str(python), "-m", "benchmarks.remote_readers", reader, url]
    rendezvous = str(scratch / f"{reader}-{layout.strip('.')}")
    hosts = [[*command, str(n), str(remote.HOSTS), rendezvous] for n in range(remote.HOSTS)]
    return command, hosts


def row(
    layout: str,
    reader: str,
    size: int,
    found: dict[str, float],
    shared: float | None,
    line: tuple[float, list[float]],
) -> list[str]:
    """Return a row of the table."""
    share, gaps = line
    rate = size / 1e6 / max(found["epoch"] - found["first"], 1e-3)
    return [
        layout,
        reader,
        f"{size / 1e6:,.0f}",
        f"{found['first']:.2f}",
        f"{found['first bytes'] / 1e6:,.1f}",
        f"{found['first requests']:.0f}",
        f"{rate:.1f}",
        f"{found['epoch bytes'] / size:.2f}",
        "" if shared is None else f"{shared / size:.2f}",
        f"{share:.0%}",
        " ".join(f"{gap:.1f}" for gap in sorted(gaps, reverse=True)[:_MOST_GAPS]),
        f"{found['cpu'] * 1e9 / size:.1f}" if "cpu" in found else "",
    ]


HEAD = [
    "layout", "reader", "files, MB", "first, s", "MB by then", "requests", "MB/s", "x",
    "x of 4 hosts", "line", "gaps, s", "CPU",
]  # fmt: skip
_MOST_GAPS = 8


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=100.0, help="of each layout's files")
    parser.add_argument("--only", default="", help="layouts whose names contain this")
    parser.add_argument("--readers", default="", help="readers whose names contain this")
    parser.add_argument("--parts", default="time,hosts", help="figures to measure")
    parser.add_argument("--delay-s", type=float, default=0.03)
    parser.add_argument("--bytes-per-s", type=float, default=50e6)
    arguments = parser.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        with remote.far_store(base / "store", arguments.delay_s, arguments.bytes_per_s) as (
            store,
            slow,
            fast,
        ):
            for layout, corpus in CORPORA.items():
                if arguments.only not in layout:
                    continue
                folder = base / f"corpus{layout.replace('.', '-')}"
                folder.mkdir()
                corpus.write(folder, layouts.lognormal(arguments.megabytes * 1e6 / corpus.id_bytes))
                size = remote.put(store, folder, folder.name)
                url = f"{store.url}/{folder.name}"
                if "litdata" in corpus.peers and (python := python_of("remote")):
                    index = [str(python), "-m", "benchmarks.remote_readers", "index", str(folder)]
                    subprocess.run(index, check=True, stdout=subprocess.DEVNULL)
                    remote.put(store, folder, f"{folder.name}-litdata")
                for reader in (OURS, *corpus.peers):
                    if arguments.readers not in reader:
                        continue
                    own = f"{url}-litdata" if reader == "litdata" else url
                    alone, hosts = _commands(reader, layout, own, base)
                    try:
                        found, shared = None, None
                        far = slow if "time" in arguments.parts else fast
                        found = _run([alone], far)
                        line = far.line(found["first at"], arguments.delay_s / 4)
                        if "hosts" in arguments.parts and reader not in ALONE:
                            shared = _run(hosts, fast)["epoch bytes"]
                    except (RuntimeError, subprocess.SubprocessError) as error:
                        print(f"{reader} on {layout}: {error}", file=sys.stderr)
                    if found is not None:
                        rows.append(row(layout, reader, size, found, shared, line))
                        print(" | ".join(rows[-1]), file=sys.stderr)
    print_table(f"From {store.name}, in {FILES} files", HEAD, rows)


if __name__ == "__main__":
    main()
