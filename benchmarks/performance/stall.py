"""Threads or processes beside a training loop: the suite's job "stall", drawn.

See `benchmarks.runners.stall` for what is measured.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.harness import run_job
from benchmarks.jobs import JOBS
from benchmarks.page import markdown_table
from benchmarks.performance.options import Options
from benchmarks.workloads import Workload

__all__ = ["draw", "measure", "table"]


def measure(options: Options) -> dict[str, Any]:
    """{where batches are made: {figure: [of each round]}}."""
    (job,) = (job for job in JOBS if job.name == "stall")
    Workload("lognormal", options.folder, options.scale).make()
    labels = {runner.__name__: runner.label.removeprefix("loop stall, ") for runner in job.runners}
    found: dict[str, dict[str, list[float]]] = {}
    for sample in run_job(
        job, folder=options.folder, rounds=options.rounds, scale=options.scale, seed=0,
        seconds=options.seconds,
    ):  # fmt: skip
        if sample.error is not None:
            raise RuntimeError(f"{sample.runner}: {sample.error}")
        own = found.setdefault(labels[sample.runner], {})
        for name, value in sample.found["figures"].items():
            own.setdefault(name, []).append(value)
    return found


def table(figures: dict[str, Any]) -> str:
    """Medians and ranges."""
    names = list(next(iter(figures.values())))
    rows = [[where, *(_cell(found[name]) for name in names)] for where, found in figures.items()]
    return markdown_table(["batches made by", *names], rows)


def _cell(values: list[float]) -> str:
    middle = f"{statistics.median(values):.3g}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.3g} to {max(values):.3g})"


def draw(figures: dict[str, Any], path: Path) -> None:
    """Bars of waiting and of slower compute."""
    from benchmarks.performance.charts import chart, save

    figure, axes = chart(2)
    names = ("waiting, % of wall time", "compute slower, %")
    for axis, name, most in zip(axes, names, (1, 2), strict=True):
        medians = [statistics.median(found[name]) for found in figures.values()]
        bars = axis.barh(list(figures), medians, color="#4c72b0")
        axis.bar_label(bars, [f" {value:.2g}" for value in medians], fontsize=8)
        axis.axvline(most, color="#c44e52", linestyle=":", label="target")
        axis.set(xlabel=name)
        axis.invert_yaxis()
        axis.legend(frameon=False, fontsize=8)
    save(figure, path)
