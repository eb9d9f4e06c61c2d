"""The picture of a run: what every runner of a job makes of copying."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Sample
from benchmarks.jobs import JOBS
from benchmarks.summary import lines_of
from benchmarks.workloads import Workload

__all__ = ["draw"]


def draw(samples: Sequence[Sample], workloads: dict[str, Workload], path: Path) -> None:
    """Bars of "x copying" per job, logarithmic; nothing is drawn if no job has any."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    charts = []
    for job in JOBS:
        name = job.workloads[0]
        own = [s for s in samples if s.job == job.name]
        if own and len(job.workloads) == 1:
            lines = [line for line in lines_of(job, own, workloads[name]) if line.x_copying]
            if len(lines) > 1:
                charts.append((job.title, sorted(lines, key=lambda line: -(line.x_copying or 0))))
    if not charts:
        return
    heights = [len(lines) + 1 for _, lines in charts]
    figure, axes = plt.subplots(
        len(charts), 1, figsize=(9, 0.32 * sum(heights) + 0.5 * len(charts)), squeeze=False,
        gridspec_kw={"height_ratios": heights}, sharex=True,
    )  # fmt: skip
    for axis, (title, lines) in zip(axes[:, 0], charts, strict=True):
        values = [line.x_copying or 0 for line in lines]
        ours = ["#c44e52" if line.runner.label.startswith("streampack") else "#8c8c8c"
                for line in lines]  # fmt: skip
        bars = axis.barh([line.runner.label for line in lines], values, color=ours)
        axis.bar_label(bars, [f" {value:.2g}" for value in values], fontsize=8)
        axis.set_xscale("log")
        axis.set_title(title, fontsize=10, loc="left")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("time per slot, as a multiple of copying 28 bytes", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
