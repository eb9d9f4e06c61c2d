"""What a run's state weighs, and what taking one costs.

    python -m benchmarks.state [--documents 10000] [--lanes 16]

Lanes hold windows of 10,000 documents. A checkpoint comes so rarely that every lane has begun a new
round since the last one, so nothing of a state is ready: that is what is timed. With worker
processes, they make the lanes' states, and the loop's process only puts them together. Last come
the sizes for documents that take more: short ones, which wait in no pattern, and ones that are
split over rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.synthetic import Synthetic
from streampack import PackedDataset, PackedLoader, Topology, WindowConfig

BATCH_ROWS = 16
SHOWN = "{:58s} {:>14s}"


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
    """Which round each lane is in."""
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


def report_size(what: str, corpus: Corpus, documents: int, count: int) -> None:
    """How long the text of one lane's state is."""
    found = samples(loader_of(1, documents, 0, corpus), documents, count, corpus)
    size = max(len(json.dumps(state["lanes"]["0"])) for _, state in found)
    print(SHOWN.format(f"{what}: a lane of {documents:,} documents", f"{size} B"), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Bytes and milliseconds of a run's state.")
    parser.add_argument("--documents", type=int, default=10_000, help="per window")
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--samples", type=int, default=12)
    arguments = parser.parse_args()
    for lanes, workers in ((1, 0), (arguments.lanes, 0), (arguments.lanes, 2)):
        report(lanes, arguments.documents, workers, arguments.samples)
    report_size("short, 60 tokens", SHORT, arguments.documents, arguments.samples)
    report_size("split, rows of 128", SPLIT, arguments.documents, arguments.samples)


if __name__ == "__main__":
    main()
