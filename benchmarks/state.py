"""What a run's state weighs, and what taking one costs.

    python -m benchmarks.state [--documents 10000] [--lanes 16]

Lanes hold windows of 10,000 documents. A checkpoint comes so rarely that every lane has begun a new
round since the last one, so nothing of a state is ready: that is what is timed. With worker
processes, they make the lanes' states, and the loop's process only puts them together.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.synthetic import Synthetic
from streampack import PackedDataset, PackedLoader, Topology, WindowConfig

SEQ_LEN = 2048
BATCH_ROWS = 16
MEAN_TOKENS = 150.0
SHOWN = "{:58s} {:>14s}"


def loader_of(lanes: int, documents: int, workers: int) -> PackedLoader:
    """Endless documents of lognormal length, in windows of so many."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(0.0, 1.1, 40_000))
    lengths = np.ceil(lengths * MEAN_TOKENS / lengths.mean()).astype(np.int64)
    window = WindowConfig(
        window_tokens=int(1.3 * documents * lengths.mean()), window_documents=documents
    )
    dataset = PackedDataset(
        Synthetic(lengths, 1 << 40),
        seq_len=SEQ_LEN,
        batch_tokens=BATCH_ROWS * SEQ_LEN,
        window=window,
        lanes=lanes,
        topology=Topology(),
    )
    return PackedLoader(dataset, num_workers=workers)


def rounds(state: dict[str, Any]) -> dict[str, int]:
    """Which round each lane is in."""
    return {lane: own["round"] for lane, own in state["lanes"].items() if own}


def samples(loader: PackedLoader, documents: int, count: int) -> Iterator[tuple[float, Any]]:
    """Seconds and state of `count` calls, each with all lanes in a new round and full windows."""
    lanes = loader.dataset.plan.config.lanes
    batches = iter(loader)
    # Half of a window goes in a round.
    steps = int(1.3 * documents * MEAN_TOKENS / SEQ_LEN / BATCH_ROWS) + 1
    before: dict[str, int] = {}
    taken = 0
    while taken < count:
        for _ in range(steps * lanes):
            next(batches)
        began = time.perf_counter()
        state = loader.state_dict()
        seconds = time.perf_counter() - began
        now = rounds(state)
        held = [own["documents"] for own in state["lanes"].values() if own]
        fresh = all(before.get(lane) != number for lane, number in now.items())
        if before and fresh and len(held) == lanes and min(held) >= 0.95 * documents:
            taken += 1
            yield seconds, state
        before = now


def report(lanes: int, documents: int, workers: int, count: int) -> None:
    """One case: how long a call takes, and how long the texts are."""
    found = list(samples(loader_of(lanes, documents, workers), documents, count))
    seconds = [spent for spent, _ in found]
    sizes = [[len(json.dumps(own)) for own in state["lanes"].values()] for _, state in found]
    whole = max(len(json.dumps(state)) for _, state in found)
    name = f"{lanes} lane{'s' if lanes > 1 else ''}, {workers} workers"
    middle, least = 1e3 * float(np.median(seconds)), 1e3 * min(seconds)
    print(SHOWN.format(f"{name}: state_dict, median (least)", f"{middle:.2f} ({least:.2f}) ms"))
    print(SHOWN.format(f"{name}: a lane of {documents:,} documents", f"{max(map(max, sizes))} B"))
    print(SHOWN.format(f"{name}: the rank", f"{whole / 1024:.1f} KiB"), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Bytes and milliseconds of a run's state.")
    parser.add_argument("--documents", type=int, default=10_000, help="per window")
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--samples", type=int, default=12)
    arguments = parser.parse_args()
    for lanes, workers in ((1, 0), (arguments.lanes, 0), (arguments.lanes, 2)):
        report(lanes, arguments.documents, workers, arguments.samples)


if __name__ == "__main__":
    main()
