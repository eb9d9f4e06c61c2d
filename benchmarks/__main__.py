"""The benchmark suite.

    python -m benchmarks [--only [JOB ...]] [--quick] [--rounds 3] [--out FOLDER] [--docs]

Runs every job's runners in turn, each in a fresh process, prints the tables, and keeps the figures
in the folder's `results.json`, beside the figures of other jobs. ``--docs`` keeps them in
docs/benchmarks/ and writes the page of records there; with ``--only`` and no job the page is made
of the figures that are there.

The environments of the peers are made by ``python -m benchmarks.environments``; a peer without its
environment is reported as such.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import run_job
from benchmarks.jobs import JOBS, Job
from benchmarks.records import write_page
from benchmarks.report import load_before, machine, markdown
from benchmarks.workloads import Workload

DOCS = Path(__file__).parent.parent / "docs"


def main(arguments: Sequence[str] | None = None, docs: Path = DOCS) -> None:
    """Run, print, write."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parse(arguments)
    out = docs / "benchmarks" if options.docs else options.out
    out.mkdir(parents=True, exist_ok=True)
    file = out / "results.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    command = " ".join(["python -m benchmarks", *arguments])
    jobs = [job for job in JOBS if options.only is None or job.name in options.only]
    with tempfile.TemporaryDirectory() as temporary:
        for job in jobs:
            results[job.name] = {"command": command, **run(job, options, Path(temporary))}
            file.write_text(json.dumps(results, indent=1) + "\n")
    text = markdown(results)
    print(text)
    if options.docs:
        write_page(docs)
    names = {job.name for job in jobs}
    if any("Error" in s.get("error", "") for name in names for s in results[name]["samples"]):
        raise SystemExit("Some runners failed; the tables name them.")


def run(job: Job, options: argparse.Namespace, temporary: Path) -> dict[str, Any]:
    """Return a job's samples and their machine, after a line of progress for each."""
    scale, rounds, seconds = options.scale, options.rounds, options.seconds
    if options.quick:
        scale, rounds, seconds = 0.002, 1, 0.0
    folder = options.data or temporary
    for name in job.workloads:
        Workload(name, folder, scale, options.seed).make()
    made: dict[str, Any] = {"machine": machine(), "load": load_before(), "versions": {}}
    samples = []
    for sample in run_job(
        job, folder=folder, rounds=rounds, scale=scale, seed=options.seed, seconds=seconds
    ):
        made["versions"] |= sample.get("found", {}).pop("versions", {})
        samples.append(sample)
        where = f"{job.name} {sample['workload']} {sample['runner']}"
        print(f"{where}: {sample.get('error', 'done')}", file=sys.stderr, flush=True)
    return {**made, "samples": samples}


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmark suite.")
    names = [job.name for job in JOBS]
    parser.add_argument("--only", nargs="*", choices=names, metavar="JOB", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the documents")
    parser.add_argument("--seconds", type=float, default=1.0, help="time passes for about so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="folder that keeps the workloads' files")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    parser.add_argument("--docs", action="store_true", help="keep figures and tables in docs/")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
