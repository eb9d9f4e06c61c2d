"""Runs the runners of a job in turn, each in a fresh process, round by round.

The process is this module too: ``python -m benchmarks.harness ORDER RESULT_FILE``, with an `Order`
as JSON, in the environment of the runner's library.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.environments import python_of
from benchmarks.jobs import Job, find_runner
from benchmarks.protocol import Measured, Runner, Timed, time_passes
from benchmarks.report import library_versions
from benchmarks.workloads import Workload

__all__ = ["Order", "measured", "run_job"]

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 900


@dataclass(frozen=True)
class Order:
    """Instructions for a process.

    Attributes:
        job, runner, workload: names; folder, scale, seed: of the workload.
        check: compare the output too; seconds: time passes for about so long.
    """

    job: str
    runner: str
    workload: str
    folder: str
    scale: float
    seed: int
    check: bool
    seconds: float


def run_job(
    job: Job, *, folder: Path, rounds: int, scale: float, seed: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Every runner once per round; the first round checks its output.

    A sample has `runner`, `workload`, `round`, and `found`, or an `error` with the cause of
    its absence. A runner that fails, or has no environment, is not tried in later rounds.
    """
    for workload in job.workloads:
        failed: set[type[Runner]] = set()
        for number in range(min(rounds, job.rounds or rounds)):
            for runner in job.runners:
                if runner in failed:
                    continue
                name = runner.__name__
                order = Order(
                    job.name, name, workload, str(folder), scale, seed, number == 0, seconds
                )
                found = run_child(runner, order)
                if "error" in found:
                    failed.add(runner)
                yield {"runner": name, "workload": workload, "round": number, **found}


def run_child(runner: type[Runner], order: Order) -> dict[str, Any]:
    """`found`, or `error`."""
    python = python_of(runner.environment)
    if python is None:
        name = runner.environment
        return {"error": f"its environment is missing: python -m benchmarks.environments {name}"}
    with tempfile.TemporaryDirectory() as name:
        result = Path(name, "result.json")
        command = [str(python), "-m", "benchmarks.harness", json.dumps(asdict(order)), str(result)]
        # Kernels are compiled from the first call, which is not measured.
        ours = {"PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "0"}
        variables = {**os.environ, **ours, **runner.variables}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return {"error": f"took more than {TIMEOUT_S} s"}
        if not result.exists():
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return {"error": lines[-1]}
        return {"found": json.loads(result.read_text())}


def measured(order: Order) -> dict[str, Any]:
    """Do it, in this process."""
    workload = Workload(order.workload, Path(order.folder), order.scale, order.seed)
    workload.make()
    runner = find_runner(order.job, order.runner)(workload)
    runner.prepare()
    found: dict[str, Any] = {}
    if isinstance(runner, Measured):
        found["figures"] = runner.measure(order.seconds)
    elif isinstance(runner, Timed):
        found |= time_passes(runner, order.seconds)
        found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if order.check:  # after the peak: it may keep the compared output
            counts = runner.check()
            found["counts"] = {**asdict(counts), "lost": workload.num_tokens - counts.tokens}
    return {**found, "versions": library_versions()}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measured(Order(**json.loads(sys.argv[1])))))
