"""Bytes that an epoch takes from a store, by hosts: ``python -m benchmarks.remote_epoch``.

Each host has a cache and fetches the blocks that the parts of its lanes touch. The first lines
check the counts: files of `--checked-megabytes`, cut once into the parts of 12 lanes, are read in
full from an HTTP server that counts the ranges.

The others are a corpus of `--gibibytes`, with the parts that a run over as many bytes deals. They
come from a run over synthetic documents, with shards alike or as unlike as in `benchmarks.dealing`.

- "x of N": bytes of all hosts over the bytes of the files, with a rank on each host; "x of 4 x 8":
  with eight ranks on each of four hosts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from benchmarks import dealing, layouts
from benchmarks.remote import flat, parquet
from benchmarks.report import print_table
from streampack import sources
from streampack.deals.spans import DealtSpans, LanePart
from streampack.metrics import fetched
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.sharded import ShardedSource
from streampack.storage.blocks import BLOCK_BYTES

HOSTS = (1, 2, 4)
RANKS = 8  # of a host, in the last column
SHARDS = ("shards alike", "shards differ in length and bytes per token")
_ROWS = 1000  # of a row group, of 3 MB
_GROUP_BYTES = _ROWS * 740 * 4
_HEAD_BYTES = 1 << 20  # of a file, fetched when it is opened or listed


class Layout(NamedTuple):
    """A way to write and read files.

    Attributes:
        id_bytes: bytes per id.
        unit_bytes: size of a unit (row group); a part is read from the beginning of its unit.
        beyond_bytes: read behind a part, inside its unit.
        opened: number of the block that each opened file is read at, if any.
        from_start: a part is read from the beginning of its file.
        whole: a part needs all of its file.
        in_folder: all files are written at once, and named by an index.
    """

    write: Callable[[Path, list[Any]], None]
    kind: Any
    arguments: dict[str, Any]
    id_bytes: float
    unit_bytes: int = 1
    beyond_bytes: int = 0
    opened: int | None = None
    from_start: bool = False
    whole: bool = False
    in_folder: bool = False


LAYOUTS = {
    ".jsonl": Layout(layouts.lines(None), sources.JSONL, {"tokens": "tokens"}, 6.8),
    ".npy": Layout(flat("a.npy"), sources.Tokens, {"eos_id": 0}, 2.0, opened=0),
    "Parquet": Layout(
        parquet(_ROWS),
        sources.Parquet,
        {"tokens": "tokens"},
        4.0,
        _GROUP_BYTES,
        1 << 20,
        -1,
    ),
    "MDS": Layout(
        layouts.mds(16 << 20), sources.MDS, {"tokens": "tokens"}, 2.0, opened=0, in_folder=True
    ),
    "tar": Layout(
        layouts.archive(None), sources.WebDataset, {"tokens": "npy"}, 3.0, from_start=True
    ),
    ".jsonl.gz": Layout(
        layouts.lines("gz"), sources.JSONL, {"tokens": "tokens"}, 3.2, from_start=True, whole=True
    ),
}
LARGE_GROUPS = {
    f"Parquet, groups of {size} MB": LAYOUTS["Parquet"]._replace(unit_bytes=size * 1_000_000)
    for size in (32, 128)
}

#: Parts [low, high) of the line that each lane reads.
Spans = list[list[tuple[int, int]]]


def _blocks(layout: Layout, sizes: list[int], parts: list[Any]) -> int:
    """Bytes of the blocks that the parts of a host touch."""
    touched: list[set[int]] = [set() for _ in sizes]
    for part in parts:
        for shard, low, high in part.pieces:
            unit = layout.unit_bytes
            begin, end = low // unit * unit, -(-high // unit) * unit
            end = min(end, high + layout.beyond_bytes) if unit > 1 else high
            begin = 0 if layout.from_start else begin
            end = sizes[shard] if layout.whole else end
            last = -(-sizes[shard] // BLOCK_BYTES) - 1
            touched[shard].update(range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)))
            if layout.opened is not None:
                touched[shard].add(last if layout.opened < 0 else layout.opened)
    if not layout.in_folder:
        touched[0].update(range(_HEAD_BYTES // BLOCK_BYTES))  # which listing looks at
    return sum(
        min(BLOCK_BYTES, size - number * BLOCK_BYTES)
        for size, numbers in zip(sizes, touched, strict=True)
        for number in numbers
        if number * BLOCK_BYTES < size
    )


def simulated(layout: Layout, sizes: list[int], spans: Spans, hosts: int, ranks: int = 1) -> float:
    """Bytes of all hosts over the bytes of the files; `spans` are of the line, by lane."""
    with tempfile.TemporaryDirectory() as scratch:
        names = [Path(scratch) / f"{number}.bin" for number in range(len(sizes))]
        for name, size in zip(names, sizes, strict=True):
            with open(name, "wb") as file:  # empty on this disk
                file.truncate(size)
        source = sources.Tokens(list(map(str, names)), eos_id=0, dtype="uint16")
        source.prepare()
        parts: list[list[Any]] = [[] for _ in range(hosts)]
        for lane, own in enumerate(spans):
            for low, high in own:
                part = source._span(low, min(high, sum(sizes)), seed=0, epoch=0, shuffle=True)
                parts[lane % (hosts * ranks) // ranks].append(part)
    return sum(_blocks(layout, sizes, part) for part in parts) / sum(sizes)


def cut_once(weight: int, lanes: int) -> Spans:
    """Equal parts of a line."""
    bounds = [weight * lane // lanes for lane in range(lanes + 1)]
    return [[part] for part in pairwise(bounds)]


def dealt(corpus: str, weight: int, lanes: int) -> tuple[Spans, int]:
    """The parts that a run deals to lanes, and the weight of its line, about `weight`."""
    shard_bytes = 4 * 600 * dealing.SHARD_DOCUMENTS
    source = dealing.CORPORA[corpus](weight // shard_bytes)
    spans: Spans = [[] for _ in range(lanes)]
    parts = DealtSpans.part

    def part(self: DealtSpans, number: int) -> LanePart | None:
        dealt = parts(self, number)
        if dealt is not None and dealt.span is not None:
            span = (dealt.span.low, dealt.span.high)
            if span not in spans[self._lane]:
                spans[self._lane].append(span)
        return dealt

    with mock.patch.object(DealtSpans, "part", part):
        for _ in dealing.loader_of(source, lanes, dealt=True):
            pass
    assert isinstance(source, ShardedSource)
    return spans, source.manifest.weight


@contextmanager
def _served(folder: Path) -> Iterator[Any]:
    from tests.support.servers import http_server

    with http_server(folder) as server:
        yield server


def measured(layout: Layout, server: Any, files: int, lanes: int, hosts: int) -> float:
    """The same, by reading all documents."""
    server.requests.clear()
    size = sum(file.stat().st_size for file in server.folder.iterdir() if file.suffix != ".json")
    ending = next(server.folder.iterdir()).name.partition(".")[2]
    urls: Any = [f"{server.url}/{number}.{ending}" for number in range(files)]
    urls = server.url if layout.in_folder else urls
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:  # threads still fetch
        for host in range(hosts):
            storage = sources.Storage(cache_dir=Path(base) / str(host))
            source = layout.kind(urls, storage=storage, **layout.arguments)
            source.prepare()
            for lane in source.lanes(lanes, seed=0, epoch=0, shuffle=True)[host::hosts]:
                for _ in lane.read(None, ErrorPolicy()):
                    fetched.clear()
    spans = [r.range.removeprefix("bytes=").split("-") for r in server.requests if r.range]
    return sum(int(last) + 1 - int(first) for first, last in spans) / size


def _row(name: str, what: str, sizes: list[int], lanes: int, found: list[float]) -> list[str]:
    content = f"{len(sizes)} x {np.mean(sizes) / (1 << 20):,.0f} MiB"
    figures = [f"{factor:.2f}" for factor in found]
    return [name, what, content, str(lanes), *figures, *([""] * (len(HOSTS) + 1 - len(figures)))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gibibytes", type=float, default=5.0, help="of the simulated corpus")
    parser.add_argument("--checked-megabytes", type=float, default=64.0)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--lanes", type=int, default=64)
    arguments = parser.parse_args()
    rows: list[list[str]] = []
    for name, layout in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            files, lanes = 4, 12
            if layout.in_folder:
                ids = arguments.checked_megabytes * 1e6 / layout.id_bytes
                layout.write(folder, layouts.lognormal(ids))
            for number in range(0 if layout.in_folder else files):
                inner = folder / f"part-{number}"
                inner.mkdir()
                ids = arguments.checked_megabytes * 1e6 / layout.id_bytes / files
                layout.write(inner, layouts.lognormal(ids))
                (file,) = inner.iterdir()
                file.rename(folder / f"{number}.{file.name.partition('.')[2]}")
                inner.rmdir()
            written = [file for file in sorted(folder.iterdir()) if file.suffix != ".json"]
            sizes = [file.stat().st_size for file in written]
            with _served(folder) as server:
                found = [measured(layout, server, files, lanes, hosts) for hosts in HOSTS]
            rows.append(_row(name, "read", sizes, lanes, found))
            spans = cut_once(sum(sizes), lanes)
            found = [simulated(layout, sizes, spans, hosts) for hosts in HOSTS]
            rows.append(_row(name, "simulated", sizes, lanes, found))
    for corpus in SHARDS:
        weight, lanes = int(arguments.gibibytes * (1 << 30)), arguments.lanes
        spans, weight = dealt(corpus, weight, lanes)
        sizes = [weight // arguments.files // 2 * 2] * arguments.files
        for name, layout in (LAYOUTS | LARGE_GROUPS).items():
            found = [simulated(layout, sizes, spans, hosts) for hosts in HOSTS]
            found.append(simulated(layout, sizes, spans, HOSTS[-1], RANKS))
            rows.append(_row(name, corpus, sizes, lanes, found))
    factors = [f"x of {hosts}" for hosts in HOSTS]
    head = ["layout", "", "files", "lanes", *factors, f"x of {HOSTS[-1]} x {RANKS}"]
    print_table("Bytes fetched for an epoch, over the bytes of the files", head, rows)


if __name__ == "__main__":
    main()
