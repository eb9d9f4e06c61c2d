"""Size of a run's state, and the cost of taking one.

    python -m benchmarks.state [--documents 10000] [--lanes 16]

Lanes hold windows of 10,000 documents. A checkpoint comes so rarely that every lane has begun a new
round since the last one, so no part of a state is ready when it is timed. With worker processes,
they make the lanes' states, and the loop's process only puts them together. Last come the sizes for
documents that take more: short ones, which wait in no pattern, and ones that are split over rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.report import print_table
from benchmarks.synthetic import Synthetic
from streampack import PackedDataset, PackedLoader, Topology, WindowConfig

BATCH_ROWS = 16


@dataclass(frozen=True)
class Corpus:
    """Documents of lognormal length, and how they are packed."""

    mean_tokens: float
    sigma: float
    seq_len: int
    carry: float = 0.5


MIXED = Corpus(mean_tokens=150.0, sigma=1.1, seq_len=2048)
SHORT = Corpus(mean_tokens=60.0, sigma=0.7, seq_len=1024)
SPLIT = Corpus(mean_tokens=150.0, sigma=1.0, seq_len=128, carry=0.9)


def loader_of(lanes: int, documents: int, workers: int, corpus: Corpus = MIXED) -> PackedLoader:
    """Endless documents, in windows of so many."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(0.0, corpus.sigma, 40_000))
    lengths = np.ceil(lengths * corpus.mean_tokens / lengths.mean()).astype(np.int64)
    rows = int(1.3 * documents * lengths.mean()) // corpus.seq_len
    window = WindowConfig(rows=rows, documents=documents, carry=corpus.carry)
    dataset = PackedDataset(
        Synthetic(lengths, 1 << 40),
        seq_len=corpus.seq_len,
        batch_size=BATCH_ROWS,
        window=window,
        lanes=lanes,
        topology=Topology(),
    )
    return PackedLoader(dataset, num_workers=workers)


def rounds(state: dict[str, Any]) -> dict[str, int]:
    """Return the round of each lane."""
    return {lane: own["round"] for lane, own in state["lanes"].items() if own}


def samples(
    loader: PackedLoader, documents: int, count: int, corpus: Corpus = MIXED
) -> Iterator[tuple[float, Any]]:
    """Seconds and state of `count` calls, each with all lanes in a new round and full windows."""
    lanes = loader.dataset.plan.config.lanes
    batches = iter(loader)
    # Half of a window goes in a round.
    steps = int(1.3 * documents * corpus.mean_tokens / corpus.seq_len / BATCH_ROWS) + 1
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


def report(lanes: int, documents: int, workers: int, count: int) -> list[str]:
    """A row: how long a call takes, and how long the texts are."""
    found = list(samples(loader_of(lanes, documents, workers), documents, count))
    lane = max(len(json.dumps(own)) for _, state in found for own in state["lanes"].values())
    whole = max(len(json.dumps(state)) for _, state in found)
    middle = 1e3 * float(np.median([spent for spent, _ in found]))
    name = f"{lanes} lane{'s' * (lanes > 1)}, {workers} workers"
    return [name, f"{middle:.2f}", f"{lane:,}", f"{whole:,}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Bytes and milliseconds of a run's state.")
    parser.add_argument("--documents", type=int, default=10_000, help="per window")
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--samples", type=int, default=12)
    given = parser.parse_args()
    cases = ((1, 0), (given.lanes, 0), (given.lanes, 2))
    rows = [report(lanes, given.documents, workers, given.samples) for lanes, workers in cases]
    for name, corpus in (("short, 60 tokens", SHORT), ("split, rows of 128", SPLIT)):
        found = samples(
            loader_of(1, given.documents, 0, corpus), given.documents, given.samples, corpus
        )
        size = max(len(json.dumps(state["lanes"]["0"])) for _, state in found)
        rows.append([name, "", f"{size:,}", ""])
    head = ["", "state_dict, ms", "bytes of a lane", "bytes of the rank"]
    print_table(f"Windows of {given.documents:,} documents", head, rows)


if __name__ == "__main__":
    main()
