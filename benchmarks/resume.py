"""When the first batch comes after a saved state, anywhere in an epoch.

    python -m benchmarks.resume [--scale 1.0] [--lanes 4]

The same documents as MDS, Parquet and tar shards. A run is stopped at 0, 50 and 90 % of an epoch
and goes on from its state, in this process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.corpus_files import mds_shards, npy_tars, parquet_ids
from benchmarks.report import print_table
from benchmarks.workloads import Workload
from streampack import PackedDataset, PackedLoader, Topology, sources
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


def first_batch_s(source: ShardedSource, lanes: int, state: dict[str, Any]) -> float:
    """Seconds from loading a state to the next batch."""
    loader = PackedLoader(dataset_of(source, lanes))
    began = time.perf_counter()
    loader.load_state_dict(state)
    next(iter(loader))
    return time.perf_counter() - began


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
                runs = [first_batch_s(source, options.lanes, state) for _ in range(SAMPLES)]
                rows.append([kind, f"{place:.0%}", f"{1e3 * min(runs):.1f}"])
    head = ["source", "at", "first batch, ms"]
    title = f"{len(workload.lengths)} documents, {workload.num_tokens / 2**19:.0f} MiB of ids"
    print_table(title, head, rows)


if __name__ == "__main__":
    main()
