"""Time of `set_weights` if it is called at every step, and the size of the state.

    python -m benchmarks.weights [--steps 1000] [--lanes 16]

A mixture of three synthetic sources; the weights of each step are random. The last column is the
time of a call with a step that lanes have begun, together with the batch after it: such a call
reopens the lanes, as a resume does.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice

import numpy as np

from benchmarks.report import print_table
from benchmarks.synthetic import Synthetic
from streampack import PackedDataset, PackedLoader, Topology, sources

NAMES = ("web", "books", "code")
REOPENED = 10  # calls that reopen the lanes


def loader_of(lanes: int, workers: int) -> PackedLoader:
    """Rows of 2,048 tokens, in batches of 16, of documents with lognormal lengths."""
    rng = np.random.default_rng(0)
    lengths = np.ceil(np.exp(rng.normal(5.0, 1.0, 20_000))).astype(np.int64)
    mixture = sources.Mixture({name: Synthetic(lengths, 1 << 40) for name in NAMES})
    dataset = PackedDataset(
        mixture, seq_len=2048, batch_size=16, lanes=lanes, epochs=None, topology=Topology()
    )
    return PackedLoader(dataset, num_workers=workers)


def report(lanes: int, workers: int, steps: int) -> list[str]:
    """A row: milliseconds of a call, and bytes of the changes in the state."""
    rng = np.random.default_rng(1)
    loader = loader_of(lanes, workers)
    batches = iter(loader)
    for _ in islice(batches, 10 * lanes):
        pass
    spent, sizes = [], []
    for _ in range(steps):
        weights = rng.dirichlet((1, 1, 1))
        began = time.perf_counter()
        loader.set_weights(dict(zip(NAMES, weights.tolist(), strict=True)))
        spent.append(time.perf_counter() - began)
        next(batches)
        sizes.append(len(json.dumps(loader.state_dict()["weights"])))
    reopening = []
    for _ in range(REOPENED):
        weights = rng.dirichlet((1, 1, 1))
        began = time.perf_counter()
        now = loader._run.steps_taken
        loader.set_weights(dict(zip(NAMES, weights.tolist(), strict=True)), from_step=now)
        next(batches)
        reopening.append(time.perf_counter() - began)
    median, late, most = 1e3 * np.quantile(spent, (0.5, 0.99, 1.0))
    return [
        f"{lanes} lanes, {workers} workers",
        f"{median:.2f} / {late:.2f} / {most:.2f}",
        f"{sizes[3 * steps // 4]:,} / {sizes[-1]:,}",
        f"{1e3 * np.median(reopening):.0f}",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Milliseconds of set_weights at every step.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lanes", type=int, default=16)
    given = parser.parse_args()
    cases = ((1, 0), (given.lanes, 0), (given.lanes, 2))
    rows = [report(lanes, workers, given.steps) for lanes, workers in cases]
    head = ["", "ms: median / 99 % / most", "bytes after 3/4 / all", "ms, reopened"]
    print_table(f"set_weights after each of {given.steps:,} steps", head, rows)


if __name__ == "__main__":
    main()
