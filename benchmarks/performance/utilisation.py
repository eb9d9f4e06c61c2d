"""Utilisation against the window and against the number of lanes, for three distributions.

Lengths alone: what is planned and emitted is exactly what a lane emits
(`streampack.run.dry_run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.page import markdown_table
from benchmarks.performance.options import Options
from benchmarks.protocol import SEQ_LEN
from benchmarks.workloads import WORKLOADS, Workload
from streampack.packing import BestFitDecreasing, Packer
from streampack.run.dry_run import stream_plan
from streampack.run.plan import LANES_PER_RANK, WINDOWS_PER_LANE
from streampack.window.config import DEFAULT_ROWS, WindowConfig

__all__ = ["draw", "measure", "table"]

WINDOWS = (8, 16, 32, 64, 128, 256, 512, 1024)  # rows
CLOSE_POINTS = 0.05  # percentage points that count as equal to planning everything
LANES = (1, 2, 4, 8, 16, 32)
WITH_DEFAULT_LANES = (64, 128, 256, 320, 512)  # rows


def measure(options: Options) -> dict[str, Any]:
    """Percent of the slots, per workload."""
    found = {}
    for name in WORKLOADS:
        workload = Workload(name, options.folder, options.scale)
        workload.make()
        lengths = workload.lengths
        packer = BestFitDecreasing(seq_len=SEQ_LEN)
        whole = packer.plan(lengths, final=True, seed=0).metrics(lengths).utilisation
        curve = window_curve(lengths, packer, WINDOWS)
        found[name] = {
            "documents": len(lengths),
            "tokens": workload.num_tokens,
            "windows": list(WINDOWS),
            "by window, %": [100 * u for u in curve],
            "whole, %": 100 * whole,
            "smallest within 0.05 points": smallest_window(WINDOWS, curve, whole),
            "lanes": list(LANES),
            "by lanes, %": [100 * _in_lanes(lengths, lanes, DEFAULT_ROWS) for lanes in LANES],
            "by window with default lanes": [
                [rows, lanes, 100 * _in_lanes(lengths, lanes, rows)]
                for rows in WITH_DEFAULT_LANES
                for lanes in [_default_lanes(workload.num_tokens, rows)]
            ],
        }
    return found


def window_curve(lengths: NDArray[np.int64], packer: Packer, windows: Sequence[int]) -> list[float]:
    """Utilisation with a window of each size (rows of the packer's longest), batches of a row."""
    size = packer.seq_lens[-1]
    plans = (
        stream_plan(lengths, packer, WindowConfig(rows=rows), batch_tokens=size) for rows in windows
    )
    return [plan.metrics(lengths).utilisation for plan in plans]


def smallest_window(windows: Sequence[int], curve: Sequence[float], whole: float) -> int | None:
    """The smallest window from which on all are within 0.05 points of planning everything."""
    close = [100 * (whole - utilisation) <= CLOSE_POINTS for utilisation in curve]
    for number, rows in enumerate(windows):
        if all(close[number:]):
            return rows
    return None


def _default_lanes(tokens: int, rows: int) -> int:
    """What one rank takes for a corpus of so many tokens and windows of so many rows."""
    return max(min(LANES_PER_RANK, tokens // (WINDOWS_PER_LANE * rows * SEQ_LEN)), 1)


def _in_lanes(lengths: NDArray[np.int64], lanes: int, rows: int) -> float:
    """Utilisation of so many lanes with windows of so many rows, each with its share."""
    packer = BestFitDecreasing(seq_len=SEQ_LEN)
    window = WindowConfig(rows=rows)
    slots = sum(
        int(plan.seq_len.sum(dtype=np.int64))
        for part in np.array_split(lengths, lanes)
        for plan in [stream_plan(part, packer, window, batch_tokens=SEQ_LEN)]
    )
    return float(lengths.sum() / slots)


def table(figures: dict[str, Any]) -> str:
    """Utilisation in percent."""
    names = list(figures)
    windows = figures[names[0]]["windows"]
    head = [f"window, rows of {SEQ_LEN:,}", *names]
    rows = [
        [f"{rows:,}", *(f"{figures[name]['by window, %'][i]:.2f} %" for name in names)]
        for i, rows in enumerate(windows)
    ]
    rows.append(["everything at once", *(f"{figures[name]['whole, %']:.2f} %" for name in names)])
    rows.append(
        ["smallest window within 0.05 points",
         *(_or_none(figures[name]["smallest within 0.05 points"]) for name in names)]
    )  # fmt: skip
    first = markdown_table(head, rows)
    lanes = figures[names[0]]["lanes"]
    head = [f"lanes, windows of {DEFAULT_ROWS} rows", *names]
    rows = []
    for i, count in enumerate(lanes):
        cells = []
        for name in names:
            windows_each = figures[name]["tokens"] / count / (DEFAULT_ROWS * SEQ_LEN)
            percent = figures[name]["by lanes, %"][i]
            cells.append(f"{percent:.2f} % ({windows_each:.3g} windows per lane)")
        rows.append([str(count), *cells])
    corpora = ", ".join(
        f"{name}: {figures[name]['documents']:,} documents, "
        f"{figures[name]['tokens'] / 1e6:.3g} M tokens"
        for name in names
    )
    tables = [first, markdown_table(head, rows), _defaults(figures), f"({corpora}.)"]
    return "\n\n".join(tables)


def _defaults(figures: dict[str, Any]) -> str:
    """Windows with the lanes that one rank takes by itself: points behind."""
    names = list(figures)
    rows = []
    for i, (window, _, _) in enumerate(figures[names[0]]["by window with default lanes"]):
        cells = []
        for name in names:
            _, lanes, percent = figures[name]["by window with default lanes"][i]
            behind = figures[name]["whole, %"] - percent
            cells.append(f"{percent:.2f} %, {behind:.3f} behind ({lanes} lanes)")
        rows.append([f"{window:,}", *cells])
    return markdown_table(["window, rows; lanes chosen for one rank", *names], rows)


def _or_none(rows: int | None) -> str:
    return "none" if rows is None else f"{rows:,}"


def draw(figures: dict[str, Any], path: Path) -> None:
    """Two charts of points behind planning everything at once."""
    from benchmarks.performance.charts import BEFORE, chart, save

    figure, axes = chart(2)
    for axis, across, along in ((axes[0], "windows", "by window, %"),
                                (axes[1], "lanes", "by lanes, %")):  # fmt: skip
        for (name, found), style in zip(figures.items(), BEFORE, strict=False):
            behind = [max(found["whole, %"] - u, 1e-3) for u in found[along]]
            axis.plot(found[across], behind, label=name, **style)
        axis.axhline(0.05, color="#888888", linestyle=":", linewidth=1)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        ticks = next(iter(figures.values()))[across]
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes[0].set(xlabel=f"window, rows of {SEQ_LEN:,} tokens (one lane)",
                ylabel="utilisation, points behind planning everything")  # fmt: skip
    axes[1].set(xlabel=f"lanes (windows of {DEFAULT_ROWS} rows), the same corpus in all")
    axes[0].legend(frameon=False)
    save(figure, path)
