"""One runner in this process: prepares, checks, measures, and writes what it found as JSON.

    python -m benchmarks.child '{"job": ..., "runner": ..., ...}' RESULT_FILE

Run by the harness, in the runner's own environment.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.jobs import find_runner
from benchmarks.process_memory import status_mib
from benchmarks.protocol import Measured, Timed
from benchmarks.report import library_versions
from benchmarks.workloads import Workload

__all__ = ["run"]

MOST_PASSES = 500


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Do what the harness asks for; see `benchmarks.harness.Order`."""
    workload = Workload(
        order["workload"], Path(order["folder"]), scale=order["scale"], seed=order["seed"]
    )
    workload.make()
    runner = find_runner(order["job"], order["runner"])(workload)
    runner.pin()
    runner.prepare()
    found: dict[str, Any] = {}
    if isinstance(runner, Measured):
        found["figures"] = runner.measure()
    else:
        assert isinstance(runner, Timed)
        warm_up(runner)
        before = status_mib("VmRSS")
        found |= time_passes(runner, order["seconds"])
        found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found["start_mib"] = before
        if order["check"]:  # after the peak: it may keep what it compares
            found["counts"] = asdict(runner.check())
    found["versions"] = library_versions()
    return found


def warm_up(runner: Timed, seconds: float = 0.5) -> None:
    """Part of a pass: imports, compiled kernels, caches."""
    began = time.perf_counter()
    batches = runner.batches()
    for _ in batches:
        if time.perf_counter() - began > seconds:
            break
    close = getattr(batches, "close", None)
    if close is not None:
        close()


def time_passes(runner: Timed, seconds: float) -> dict[str, float]:
    """Whole passes for about so long, at least one: medians."""
    passes, firsts = [], []
    while not passes or (sum(passes) < seconds and len(passes) < MOST_PASSES):
        first = None
        began = time.perf_counter()
        for _ in runner.batches():
            if first is None:
                first = time.perf_counter() - began
        passes.append(time.perf_counter() - began)
        firsts.append(passes[-1] if first is None else first)
    return {"seconds": statistics.median(passes), "first_batch_s": statistics.median(firsts)}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(sys.argv[1]))))
