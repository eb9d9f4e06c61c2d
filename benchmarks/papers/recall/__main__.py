"""The recall experiment: ``python -m benchmarks.papers.recall``.

    python -m benchmarks.papers.recall [--results FILE]
    python -m benchmarks.papers.recall --report [FILE]

Trains every run that the file of results lacks, on one thread, all arms of a seed before the next
seed, and adds a line for each; then prints the tables. It may be stopped and restarted at any
time. `--report` only prints. The page of records has them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.papers.recall.measures import HeldOut
from benchmarks.papers.recall.protocol import PRESET, digest, planned
from benchmarks.papers.recall.report import report
from benchmarks.papers.recall.training import learn
from benchmarks.papers.results import Results

RESULTS = Path(__file__).with_name("results.jsonl")


def main() -> None:
    """Train the missing runs, or only print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.recall")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a JSON line for each run")
    parser.add_argument("--report", type=Path, nargs="?", const=RESULTS, help="print this, no runs")
    options = parser.parse_args()
    if options.report is None:
        torch.set_num_threads(1)
        results = Results.read(options.results, digest(PRESET))
        held_out = None
        for arm, seed in planned():
            if results.has(arm.name, seed):
                continue
            held_out = held_out or HeldOut(PRESET.held_out, PRESET.seq_len)
            results.add(learn(arm, seed, PRESET, held_out))
            print(f"{arm.name}, seed {seed}", flush=True)
    report(Results.read(options.report or options.results, digest(PRESET)))


if __name__ == "__main__":
    main()
