"""What going on from a saved state reads, and when the first batch comes, anywhere in an epoch.

    python -m benchmarks.resume [--scale 1.0] [--lanes 4]

The same documents as MDS, Parquet and tar shards. A run is stopped at 0, 50 and 90 % of an epoch
and goes on from its state, in this process: what every lane reads until it has given its first
batch is counted where blocks leave the source, so a reader that passes over something unread, as
tar shards are passed over from header to header, does so for nothing here but in the time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.corpus_files import mds_shards, npy_tars, parquet_ids
from benchmarks.report import print_table
from benchmarks.workloads import Workload
from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.sources.raw_bytes import Spans
from streampack.sources.sharded import ShardedSource

SEQ_LEN = 2048
PLACES = (0.0, 0.5, 0.9)
SAMPLES = 5


def dataset_of(source: ShardedSource, lanes: int) -> PackedDataset:
    """Rows of 2,048."""
    return PackedDataset(source, seq_len=SEQ_LEN, batch_size=1, lanes=lanes, topology=Topology())


def states_of(source: ShardedSource, lanes: int) -> list[dict[str, Any]]:
    """States of a run after each of `PLACES`, parts of its batches."""
    batches = sum(1 for _ in PackedLoader(dataset_of(source, lanes)))
    loader = PackedLoader(dataset_of(source, lanes))
    iterator, taken, states = iter(loader), 0, []
    for place in PLACES:
        for _ in islice(iterator, int(place * batches) - taken):
            taken += 1
        states.append(json.loads(json.dumps(loader.state_dict())))
    return states


def restore(source: ShardedSource, lanes: int, state: dict[str, Any]) -> dict[str, float]:
    """Documents, bytes of ids and shards read until every lane has given a batch; seconds."""
    read = {"documents": 0.0, "mib": 0.0}
    shards = set()
    original = source.read_shard

    def counting(shard: int, *place: Any) -> Iterator[tuple[Any, int, int]]:
        shards.add(shard)
        for block, end, reached in original(shard, *place):
            read["documents"] += len(block)
            if isinstance(block, Spans):
                read["mib"] += int(block.counts.sum()) * block.dtype.itemsize / 2**20
            else:
                read["mib"] += block.num_tokens * block.tokens.itemsize / 2**20
            yield block, end, reached

    source.read_shard = counting  # type: ignore[method-assign]
    try:
        loader = PackedLoader(dataset_of(source, lanes))
        began = time.perf_counter()
        loader.load_state_dict(state)
        batches = iter(loader)
        next(batches)
        first_s = time.perf_counter() - began
        for _ in islice(batches, lanes - 1):
            pass
        all_s = time.perf_counter() - began
    finally:
        source.read_shard = original  # type: ignore[method-assign]
    return {**read, "shards": len(shards), "first": first_s, "all": all_s}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What going on from a saved state reads.")
    parser.add_argument("--scale", type=float, default=1.0, help="of a corpus of 30 M tokens")
    parser.add_argument("--lanes", type=int, default=4)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        workload = Workload("lognormal", Path(name), scale=options.scale)
        workload.make()
        kinds: dict[str, ShardedSource] = {
            "MDS": sources.MDS(mds_shards(workload), tokens="tokens"),
            "Parquet": sources.Parquet(parquet_ids(workload), tokens="tokens"),
            "tar": sources.WebDataset(str(npy_tars(workload)), tokens="npy"),
        }
        for kind, source in kinds.items():
            for place, state in zip(PLACES, states_of(source, options.lanes), strict=True):
                runs = [restore(source, options.lanes, state) for _ in range(SAMPLES)]
                first, every = (1e3 * min(run[name] for run in runs) for name in ("first", "all"))
                documents, mib, shards = (runs[0][n] for n in ("documents", "mib", "shards"))
                figures = [f"{documents:.0f}", f"{mib:.2f}", f"{shards:.0f}"]
                rows.append([kind, f"{place:.0%}", *figures, f"{first:.1f}", f"{every:.1f}"])
    head = ["source", "at", "documents", "MiB of ids", "shards", "first batch, ms", "all lanes, ms"]
    title = f"{len(workload.lengths)} documents, {workload.num_tokens / 2**19:.0f} MiB of ids"
    print_table(title, head, rows)


if __name__ == "__main__":
    main()
