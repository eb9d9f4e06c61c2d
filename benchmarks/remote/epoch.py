"""Bytes that an epoch takes from a store, by hosts, by counting blocks.

Each host has a cache and fetches the blocks that the parts of its lanes touch, of a corpus of
`--counts` GiB in 20 files, with the parts that a run over as many bytes deals to 64 lanes. They
come from a run over synthetic documents, with shards alike or as unlike as in `benchmarks.dealing`.
`hosts` compares the counts with files that are read.

- "x of N": bytes of all hosts over the bytes of the files, with a rank on each host; "x of 4 x 8":
  with eight ranks on each of four hosts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks import dealing
from benchmarks.remote import far
from streampack import sources
from streampack.deals.spans import DealtSpans, LanePart
from streampack.sources.sharded import ShardedSource
from streampack.storage.blocks import BLOCK_BYTES

HOSTS = (1, 2, 4)
RANKS = 8  # of a host, in the last column
HEAD = [
    "layout", "shards", "GiB", *(f"x of {hosts}" for hosts in HOSTS), f"x of {HOSTS[-1]} x {RANKS}",
]  # fmt: skip
COUNTS = [5, 50]
_SHARDS = ("shards alike", "shards differ in length and bytes per token")
_FILES, _LANES = 20, 64
_GROUP_BYTES = 1000 * 740 * 4
_HEAD_BYTES = 1 << 20  # of a file, fetched when it is opened or listed


class Reads(NamedTuple):
    """The blocks that a part of a file takes.

    Attributes:
        unit_bytes: size of a unit (row group); a part is read from the beginning of its unit.
        beyond_bytes: read behind a part, inside its unit.
        opened: number of the block that each opened file is read at, if any.
        from_start: a part is read from the beginning of its file.
        whole: a part needs all of its file.
        has_index: an index is listed, and no file is looked at.
    """

    unit_bytes: int = 1
    beyond_bytes: int = 0
    opened: int | None = None
    from_start: bool = False
    whole: bool = False
    has_index: bool = False


_GROUPS = Reads(_GROUP_BYTES, 1 << 20, -1)
SIMULATED = {
    ".jsonl": Reads(),
    ".npy": Reads(opened=0),
    "Parquet": _GROUPS,
    "MDS": Reads(opened=0, has_index=True),
    "tar": Reads(from_start=True),
    ".jsonl.gz": Reads(from_start=True, whole=True),
}
LARGE_GROUPS = {
    f"Parquet, groups of {size} MB": _GROUPS._replace(unit_bytes=size * 1_000_000)
    for size in (32, 128)
}

#: Parts [low, high) of the line that each lane reads.
Spans = list[list[tuple[int, int]]]


def rows(store: far.FarStore, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for gibibytes in options.counts:
        for shards in _SHARDS:
            spans, weight = dealt(shards, int(gibibytes * (1 << 30)), _LANES)
            sizes = [weight // _FILES // 2 * 2] * _FILES
            for name in options.layouts(SIMULATED | LARGE_GROUPS):
                reads = (SIMULATED | LARGE_GROUPS)[name]
                factors = [simulated(reads, sizes, spans, hosts) for hosts in HOSTS]
                factors.append(simulated(reads, sizes, spans, HOSTS[-1], RANKS))
                yield [name, shards, f"{gibibytes:g}", *(f"{factor:.2f}" for factor in factors)]


def simulated(reads: Reads, sizes: list[int], spans: Spans, hosts: int, ranks: int = 1) -> float:
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
    return sum(_touched(reads, sizes, part) for part in parts) / sum(sizes)


def _touched(reads: Reads, sizes: list[int], parts: list[Any]) -> int:
    """Bytes of the blocks that the parts of a host touch."""
    touched: list[set[int]] = [set() for _ in sizes]
    for part in parts:
        for shard, low, high in part.pieces:
            unit = reads.unit_bytes
            begin, end = low // unit * unit, -(-high // unit) * unit
            end = min(end, high + reads.beyond_bytes) if unit > 1 else high
            begin = 0 if reads.from_start else begin
            end = sizes[shard] if reads.whole else end
            last = -(-sizes[shard] // BLOCK_BYTES) - 1
            touched[shard].update(range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)))
            if reads.opened is not None:
                touched[shard].add(last if reads.opened < 0 else reads.opened)
    if not reads.has_index:
        touched[0].update(range(_HEAD_BYTES // BLOCK_BYTES))  # which listing looks at
    return sum(
        min(BLOCK_BYTES, size - number * BLOCK_BYTES)
        for size, numbers in zip(sizes, touched, strict=True)
        for number in numbers
        if number * BLOCK_BYTES < size
    )


def dealt(corpus: str, weight: int, lanes: int) -> tuple[Spans, int]:
    """The parts that a run deals to lanes, and the weight of its line, about `weight`."""
    shard_bytes = 4 * 600 * dealing.SHARD_DOCUMENTS
    source = dealing.CORPORA[corpus](max(weight // shard_bytes, 1))
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
