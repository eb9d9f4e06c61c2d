"""Resuming reads the documents of the windows and nothing before, wherever the run stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader, Topology, WindowConfig, sources
from streampack.sources.sharded import ShardedSource
from streampack.storage import plans
from tests.support.corpora import write_mds, write_tar
from tests.support.servers import http_server

LANES = 2
PLACES = (0.0, 0.3, 0.6, 0.9)
COUNT = 6000
WINDOW = WindowConfig(rows=8)  # of 82 documents


def documents() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 999, n).astype(np.uint16) for n in rng.integers(100, 300, COUNT)]


def tars(folder: Path) -> sources.WebDataset:
    halves = documents()[: COUNT // 2], documents()[COUNT // 2 :]
    paths = [str(write_tar(folder / f"{i}.tar", half)) for i, half in enumerate(halves)]
    return sources.WebDataset(paths, tokens="npy", reading=sources.ReadOptions(block_documents=50))


def mds(folder: Path) -> sources.MDS:
    return sources.MDS(
        write_mds(folder, documents()), reading=sources.ReadOptions(block_documents=50)
    )


def loader_over(source: ShardedSource) -> PackedLoader:
    dataset = PackedDataset(
        source, seq_len=2048, batch_size=1, lanes=LANES, window=WINDOW, topology=Topology()
    )
    return PackedLoader(dataset)


def states_of(source: ShardedSource) -> list[dict[str, Any]]:
    """States of a run after these parts of its batches."""
    batches = sum(1 for _ in loader_over(source))
    loader, taken, states = loader_over(source), 0, []
    iterator = iter(loader)
    for place in PLACES:
        for _ in islice(iterator, int(place * batches) - taken):
            taken += 1
        states.append(json.loads(json.dumps(loader.state_dict())))
    return states


def documents_read(
    source: ShardedSource, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> int:
    """Count the documents that leave the source until every lane has given a batch."""
    counts = []
    original = source.read_shard

    def counting(*place: Any) -> Any:
        for block, end, reached in original(*place):
            counts.append(len(block))
            yield block, end, reached

    with monkeypatch.context() as patch:
        patch.setattr(source, "read_shard", counting)
        loader = loader_over(source)
        loader.load_state_dict(state)
        assert len(list(islice(loader, LANES))) == LANES
    return sum(counts)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [tars, mds])
def test_restoring_reads_as_much_anywhere_in_an_epoch(
    make: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(tmp_path)
    source.prepare()
    # A document waits 16 rounds at most, and a round emits half of a window or less: a lane reads
    # 8 windows at most after the oldest document, and the window itself and a block.
    most = LANES * (9 * 82 + 2 * source.reading.documents_per_block)
    assert most < COUNT / 3
    for state in states_of(source):
        assert 0 < documents_read(source, state, monkeypatch) <= most


@pytest.mark.slow
def test_a_cold_host_fetches_only_the_shards_that_its_windows_need(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write_mds(tmp_path, [rng.integers(0, 9, 90).astype(np.uint16) for _ in range(2000)])
    shards = len(list(tmp_path.glob("mds/*.mds")))
    assert shards > 150
    window = WindowConfig(rows=16)  # 23 documents, of 3 shards

    def loader(url: str, cache: Path) -> PackedLoader:
        source = sources.MDS(
            f"{url}/mds",
            storage=sources.Storage(cache_dir=cache),
            reading=sources.ReadOptions(block_documents=5),
        )
        dataset = PackedDataset(
            source, seq_len=128, batch_size=1, lanes=LANES, window=window, topology=Topology()
        )
        return PackedLoader(dataset)

    with http_server(tmp_path) as server:
        first = loader(server.url, tmp_path / "warm")
        for number, _ in enumerate(first):
            if number == 1300:
                break
        before = server.count("GET", ".mds")
        assert before > shards / 2
        again = loader(server.url, tmp_path / "cold")
        again.load_state_dict(first.state_dict())
        batches = iter(again)
        for _ in range(LANES):
            next(batches)
        # Of each lane: 9 windows as above, the open shards, and those fetched ahead, a block each.
        ahead = plans._LATER_BLOCKS
        assert server.count("GET", ".mds") - before <= LANES * (9 * 3 + 2 + ahead) < before - 40
