"""The benchmark suite.

    python -m benchmarks [--only JOB ...] [--quick] [--rounds 3] [--out FOLDER] [--docs]
    python -m benchmarks loader --source PATH ...    # your own shards: see benchmarks.loader

Runs every job's runners in turn, each in a fresh process, and prints the tables; writes
`results.json`, `report.md` and `picture.png` to the folder. ``--docs`` commits to them: the tables
go into docs/benchmarks.md, the figures and the picture into docs/benchmarks/.

The environments of the peers are made by ``python -m benchmarks.environments``; a peer whose
environment is missing is reported as such.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Sample, run_job
from benchmarks.jobs import JOBS, Job
from benchmarks.page import put_between
from benchmarks.picture import draw
from benchmarks.report import as_json, load_before, markdown
from benchmarks.workloads import Workload

ROOT = Path(__file__).parent.parent


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["loader"]:
        from benchmarks.loader.command import main as measure_loader

        measure_loader(arguments[1:])
        return
    options = _parse(arguments)
    load = load_before()
    jobs = [job for job in JOBS if not options.only or job.name in options.only]
    scale, rounds, seconds = options.scale, options.rounds, options.seconds
    if options.quick:
        scale, rounds, seconds = 0.002, 1, 0.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.data or Path(temporary)
        names = dict.fromkeys(name for job in jobs for name in job.workloads)
        workloads = {name: Workload(name, folder, scale, options.seed) for name in names}
        for workload in workloads.values():
            workload.make()
        samples = run(jobs, folder, rounds, scale, options.seed, seconds)
        command = " ".join(["python -m benchmarks", *arguments])
        text = markdown(samples, workloads, command, load)
        print(text)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "report.md").write_text(text)
        results = as_json(samples, workloads, command, load)
        (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        draw(samples, workloads, options.out / "picture.png")
    if options.docs:
        into_docs(text, options.out, ROOT / "docs" / "benchmarks.md")
    if any(sample.error and "Error" in sample.error for sample in samples):
        raise SystemExit("Some runners failed; the tables name them.")


def run(
    jobs: Sequence[Job], folder: Path, rounds: int, scale: float, seed: int, seconds: float
) -> list[Sample]:
    """All samples, or those there are when it is interrupted, with a line of progress for each."""
    samples = []
    began = time.perf_counter()
    try:
        for job in jobs:
            for sample in run_job(
                job, folder=folder, rounds=rounds, scale=scale, seed=seed, seconds=seconds
            ):
                samples.append(sample)
                spent = time.perf_counter() - began
                what = sample.error or _short(sample)
                line = f"{spent:6.0f} s  {job.name} {sample.workload} {sample.runner}: {what}"
                print(line, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("Interrupted: the tables hold what there is.", file=sys.stderr)
    return samples


def into_docs(text: str, out: Path, page: Path) -> None:
    """The tables between the page's marks, figures and picture into the folder of its name."""
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    parts = []
    for name, link in (
        ("picture.png", f"![Every runner beside copying]({folder.name}/picture.png)"),
        (
            "results.json",
            f"All figures of every round: [results.json]({folder.name}/results.json).",
        ),
    ):
        if (out / name).exists():  # a part of the jobs may have nothing to draw
            shutil.copyfile(out / name, folder / name)
            parts.append(link)
    put_between(page, "suite", "\n\n".join([*parts, text]))


def _short(sample: Sample) -> str:
    figures = sample.found.get("figures")
    if figures:
        return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
    return f"{sample.found['seconds'] * 1000:.4g} ms"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmark suite.")
    names = [job.name for job in JOBS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="JOB", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the documents")
    parser.add_argument("--seconds", type=float, default=1.0, help="time passes for about so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="folder that keeps the workloads' files")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    parser.add_argument("--docs", action="store_true", help="put the tables into the docs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
