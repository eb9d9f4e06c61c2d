"""Parts of remote shards are fetched where they begin, before their lanes read them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.sources.manifest import Piece
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.storage import Storage
from tests.support.servers import HTTPServer


def fetched_blocks(http: HTTPServer) -> list[int]:
    """Indices of the blocks that were asked for, sorted."""
    found: list[int] = []
    for request in http.requests:
        if request.range:
            first, last = map(int, request.range.removeprefix("bytes=").split("-"))
            found += range(first // BLOCK_BYTES, last // BLOCK_BYTES + 1)
    return sorted(found)


def test_an_epoch_in_many_lanes_fetches_each_block_once(http: HTTPServer, tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(1, 60_000, (4000, 400)).tolist()
    lines = "".join(json.dumps({"tokens": row}) + "\n" for row in ids)
    (http.folder / "a.jsonl").write_text(lines)
    storage = Storage(cache_dir=tmp_path / "cache")
    source = sources.JSONL(f"{http.url}/a.jsonl", tokens="tokens", storage=storage)
    dataset = PackedDataset(source, seq_len=1024, lanes=4, topology=Topology())
    loader = PackedLoader(dataset)
    tokens = sum(int(batch.cu_seqlens[-1]) for batch in loader)
    assert tokens >= 4000 * 400
    assert fetched_blocks(http) == list(range(-(-len(lines) // BLOCK_BYTES)))


@pytest.mark.parametrize(
    ("low", "high", "blocks"),
    [(10 * BLOCK_BYTES + 5, 12 * BLOCK_BYTES + 5, [10, 11, 12]), (0, 6 * BLOCK_BYTES, [4, 5])],
)
def test_a_hint_fetches_a_part_from_its_first_byte(
    http: HTTPServer, tmp_path: Path, low: int, high: int, blocks: list[int]
) -> None:
    line = json.dumps({"tokens": [7] * 900}) + "\n"
    (http.folder / "a.jsonl").write_text(line * 3000)
    storage = Storage(cache_dir=tmp_path / "cache")
    source = sources.JSONL(f"{http.url}/a.jsonl", tokens="tokens", storage=storage)
    source.prepare()  # reads the first four blocks
    http.requests.clear()
    source.will_read([(0, low, high)])
    for thread in threading.enumerate():
        if thread.name == "streampack-read-ahead":
            thread.join(60.0)
    assert fetched_blocks(http) == blocks


def test_a_lane_learns_of_a_part_after_its_first_bytes_are_on_their_way(
    http: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"tokens": [7] * 900}) + "\n"
    (http.folder / "a.jsonl").write_text(line * 3000)
    storage = Storage(cache_dir=tmp_path / "cache")
    source = sources.JSONL(f"{http.url}/a.jsonl", tokens="tokens", storage=storage)
    told, untold = set(), []
    will_read, read_shard = sources.JSONL.will_read, sources.JSONL.read_shard

    def tell(self: sources.JSONL, pieces: Sequence[Piece]) -> None:
        told.update(low for _, low, _ in pieces)
        will_read(self, pieces)

    def read(self: sources.JSONL, shard: int, low: int, *args: Any) -> Iterator[Any]:
        if low not in told:
            untold.append(low)
        return read_shard(self, shard, low, *args)

    monkeypatch.setattr(sources.JSONL, "will_read", tell)
    monkeypatch.setattr(sources.JSONL, "read_shard", read)
    loader = PackedLoader(PackedDataset(source, seq_len=1024, lanes=4, topology=Topology()))
    before = None
    for _ in loader:
        before = [*untold] if before is None else before
    assert len(told) > 4
    assert untold == before  # by the first batch, whose lane is the first
