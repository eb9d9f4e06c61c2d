"""Memory of a worker over a long stream: flat, and little more than windows and interpreter."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.page import markdown_table
from benchmarks.performance.options import Options
from benchmarks.runners.worker_memory import Readings, read_memory
from benchmarks.workloads import Workload

__all__ = ["draw", "measure", "table"]


def measure(options: Options) -> dict[str, Any]:
    """The readings of one worker, in MiB."""
    workload = Workload("lognormal", options.folder, options.scale)
    workload.make()
    return asdict(read_memory(workload.lengths[:4096], options.tokens))


def table(figures: dict[str, Any]) -> str:
    """Peak, what it is made of, growth."""
    found = Readings(**figures)
    return markdown_table(
        ["MiB of one worker", ""],
        [
            [f"peak over {found.tokens[-1] / 1e9:.3g} G tokens", f"{found.peak:.1f}"],
            ["a process that imports torch, numpy and numba", f"{found.interpreter:.1f}"],
            [f"full windows of {found.lanes} lanes, uint16", f"{found.windows:.1f}"],
            ["peak above both (negative: the worker never runs all of torch)", f"{found.more:.1f}"],
            ["growth over the last four fifths of the stream", f"{found.growth:.1f}"],
        ],
    )


def draw(figures: dict[str, Any], path: Path) -> None:
    """Resident memory over the stream."""
    from benchmarks.performance.charts import BEFORE, chart, save

    found = Readings(**figures)
    figure, axes = chart(1)
    axis = axes[0]
    across = [tokens / 1e9 for tokens in found.tokens]
    axis.plot(across, found.resident, label="worker", **{**BEFORE[0], "marker": ""})
    limit = found.interpreter + found.windows + 64
    axis.axhline(limit, color="#888888", linestyle=":",
                 label="interpreter, windows and 64 MiB")  # fmt: skip
    axis.axhline(found.interpreter, color="#4c72b0", linestyle="--", label="interpreter")
    axis.set(xlabel="G tokens", ylabel="resident memory, MiB", ylim=(0, 1.15 * limit))
    axis.legend(frameon=False, loc="lower right", fontsize=8)
    save(figure, path)
