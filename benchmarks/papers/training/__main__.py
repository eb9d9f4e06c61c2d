"""The GPU experiment: ``python -m benchmarks.papers.training``.

    python -m benchmarks.papers.training [--preset gpu] [--device cuda] [--minutes 9]
        [--folder DIR] [--results FILE]
    python -m benchmarks.papers.training --report [FILE] [--preset gpu]

Trains the runs that the file of results lacks, for so many minutes: a run that is not through is
kept as a checkpoint in the folder, beside the corpus, and the same command goes on with it.
`--preset rehearsal --device cpu` does everything at a hundredth of the size. The corpus is made of
the packages of the machine, so all pieces of an experiment belong on one machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.papers.results import Results
from benchmarks.papers.training.corpus import Corpus, package_files, tokenized
from benchmarks.papers.training.probes import Probes
from benchmarks.papers.training.protocol import PRESETS, Preset, digest, planned
from benchmarks.papers.training.report import report
from benchmarks.papers.training.run import Run


def main() -> None:
    """Train what is missing, or only print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.training")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0, help="stop and save after so many")
    parser.add_argument("--folder", type=Path, help="checkpoints of runs that are not through")
    parser.add_argument("--results", type=Path, help="a JSON line for each run")
    parser.add_argument("--report", type=Path, nargs="?", const=True, help="print this, no runs")
    options = parser.parse_args()
    results = options.results or Path(__file__).with_name(f"{options.preset}.jsonl")
    if options.report:
        file = results if options.report is True else options.report
        report(Results.read(file), PRESETS[options.preset])
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; --preset rehearsal --device cpu runs without one")
    until = time.monotonic() + 60 * options.minutes
    folder = options.folder or Path(tempfile.gettempdir()) / f"streampack-{options.preset}"
    folder.mkdir(parents=True, exist_ok=True)
    if options.device == "cpu":
        torch.set_num_threads(1)
    report(
        experiment(options.preset, options.device, results, folder, until), PRESETS[options.preset]
    )


def corpus_of(preset: Preset, folder: Path) -> Corpus:
    """The machine's corpus, kept in the folder for the next piece."""
    kept = folder / "corpus.npz"
    if kept.exists():
        return Corpus.load(kept)
    corpus = tokenized(package_files(preset.corpus_bytes), preset.size.vocab_size)
    corpus.save(kept)
    return corpus


def experiment(name: str, device: str, file: Path, folder: Path, until: float) -> Results:
    """Go on with the preset's runs until that time of `time.monotonic`."""
    preset = PRESETS[name]
    corpus = corpus_of(preset, folder)
    protocol = digest(preset, corpus)
    results = Results.read(file, protocol)
    probes = Probes(preset, corpus, device)
    for number, (arm, seed) in enumerate(planned(preset)):
        if results.has(arm.name, seed):
            continue
        checkpoint = folder / f"{protocol}-{number}.pt"
        run = Run(arm, seed, preset, corpus, device, checkpoint)
        if not run.go(until):
            print(f"{arm.name}, seed {seed}: stopped at step {run.step}", flush=True)
            break
        results.add(run.result(probes))
        checkpoint.unlink(missing_ok=True)
        print(f"{arm.name}, seed {seed}: {run.step} steps, {run.seconds:.0f} s", flush=True)
        if time.monotonic() >= until:
            break
    return results


if __name__ == "__main__":
    main()
