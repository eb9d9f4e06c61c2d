"""Damaged shards of every format: nothing lost in silence, and the same when read again."""

from __future__ import annotations

import json
import pickle
import random
import tarfile
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from tests.campaign.attack import Attack, FoundError
from tests.support.damage import damaged
from tests.support.every_source import SOURCES
from tests.support.source_contract import read_lane

__all__ = ["KINDS", "attack_shards"]

KINDS = [kind for kind in SOURCES if kind not in ("table", "list", "lane-factory", "huggingface",
         "wide-ids", "mixture", "chat-list", "chat-generator")]  # fmt: skip


def attack_shards(kind: str, folder: Path) -> Attack:
    """Damage to some of the files of a source."""
    made = SOURCES[kind](folder)
    sent = pickle.dumps(made)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    whole = {path: path.read_bytes() for path in files}
    source = pickle.loads(sent)
    source.prepare()
    shards = len(source.manifest)
    count = _read(source, Skips("raise"))[0]

    def attack(rng: random.Random) -> str:
        path = rng.choice(files)
        path.write_bytes(damaged(rng, whole[path], path))
        try:
            source = pickle.loads(sent)
            source.prepare()
            skips = Skips("skip")
            found, blocks = _read(source, skips)
            again = Skips("skip")
            if blocks != _read(source, again)[1] or skips.records != again.records:
                raise FoundError("the second reading differs from the first")
            if blocks:
                _check_rest(source, blocks, skips, rng.randrange(len(blocks)))
            lost_shards = any(record[2] for record in skips.records)
            least = _declared(kind, files, count)
            if not lost_shards and found + skips.count < least and len(source.manifest) == shards:
                raise FoundError(f"{found} and {skips.count} skipped of {least}")
            return "part" if skips.count else "whole"
        finally:
            path.write_bytes(whole[path])

    return attack


def _read(source: ShardedSource, skips: Skips) -> tuple[int, list[Any]]:
    lane = source.lanes(1, seed=0, epoch=0, shuffle=True)[0]
    blocks = read_lane(lane, None, skips)
    return sum(len(block) for block, _ in blocks), blocks


def _check_rest(source: ShardedSource, blocks: list[Any], skips: Skips, after: int) -> None:
    """What follows a cursor is the same from there."""
    lane = source.lanes(1, seed=0, epoch=0, shuffle=True)[0]
    rest = read_lane(lane, blocks[after][1], Skips("skip"))
    if [block for block, _ in rest] != [block for block, _ in blocks[after + 1 :]]:
        raise FoundError(f"what follows block {after} is something else from its cursor")


def _declared(kind: str, files: list[Path], count: int) -> int:
    """How many documents the files themselves say that there are; 0 if they do not say."""
    try:
        return _COUNTS.get(kind.partition("-")[0], lambda files, count: 0)(files, count)
    except Exception:
        return 0  # what says so is damaged as well


def _lines(files: list[Path], count: int) -> int:
    if any(path.suffix == ".gz" for path in files):
        return count if all(path.stat().st_size for path in files) else 0  # which is said
    return sum(bool(line.strip()) for path in files for line in path.read_bytes().split(b"\n"))


def _samples(files: list[Path], count: int) -> int:
    index = next(path for path in files if path.name == "index.json")
    return sum(shard["samples"] for shard in json.loads(index.read_bytes())["shards"])


def _members(path: Path) -> int:
    """Samples of an archive as Python's own reader sees them."""
    with tarfile.open(path, ignore_zeros=True) as archive:
        names = [m.name for m in archive if m.isreg() and m.name.strip("0") not in (".npy", "")]
        return sum(1 for _ in groupby(name.partition(".")[0] for name in names if "." in name))


_COUNTS: dict[str, Callable[[list[Path], int], int]] = {
    "mds": _samples,
    "parquet": lambda files, _: sum(pq.ParquetFile(path).metadata.num_rows for path in files),
    "jsonl": _lines,
    "chat": _lines,
    "arrow": lambda _, count: count,
    "tar": lambda files, _: sum(map(_members, files)),
    "megatron": lambda _, count: count,
    "datatrove": lambda _, count: count,
}
