"""Runs the runners of a job in turn, each in a fresh process, round by round."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.environments import python_of
from benchmarks.jobs import Job
from benchmarks.protocol import Runner

__all__ = ["Order", "Sample", "run_job"]

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 900


@dataclass(frozen=True)
class Order:
    """What a child process is asked to do.

    Attributes:
        job, runner, workload: which; folder, scale, seed: of the workload.
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


@dataclass(frozen=True)
class Sample:
    """What one process found: `found` is the child's, or `error` says why there is nothing."""

    job: str
    runner: str
    workload: str
    round: int
    found: dict[str, Any]
    error: str | None = None


def run_job(
    job: Job, *, folder: Path, rounds: int, scale: float, seed: int, seconds: float
) -> Iterator[Sample]:
    """Every runner once per round; the first round checks its output.

    A runner that fails, or whose environment is missing, is not tried again.
    """
    for workload in job.workloads:
        failed: set[type[Runner]] = set()
        for number in range(min(rounds, job.rounds or rounds)):
            for runner in job.runners:
                if runner in failed:
                    continue
                order = Order(
                    job=job.name,
                    runner=runner.__name__,
                    workload=workload,
                    folder=str(folder),
                    scale=scale,
                    seed=seed,
                    check=number == 0,
                    seconds=seconds,
                )
                found, error = run_child(runner, order)
                if error is not None:
                    failed.add(runner)
                yield Sample(job.name, runner.__name__, workload, number, found, error)


def run_child(runner: type[Runner], order: Order) -> tuple[dict[str, Any], str | None]:
    """What the child found, or why it found nothing."""
    python = python_of(runner.environment)
    if python is None:
        return {}, (
            f"its environment is missing: python -m benchmarks.environments {runner.environment}"
        )
    with tempfile.TemporaryDirectory() as name:
        result = Path(name, "result.json")
        command = [str(python), "-m", "benchmarks.child", json.dumps(asdict(order)), str(result)]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), **runner.variables}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return {}, f"took more than {TIMEOUT_S} s"
        if not result.exists():
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return {}, lines[-1]
        return json.loads(result.read_text()), None
