"""Where the time goes: every stage of a batch, by format, beside copying its bytes.

A loader in one process, endless and warm. Stages are the lanes' own clocks (`LaneTimes`), fields
and the rest are taken around them.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.child import time_passes
from benchmarks.corpus_files import mds_shards, npy_tars, parquet_ids
from benchmarks.loader.stages import Batches, fetch_on
from benchmarks.page import markdown_table
from benchmarks.performance.options import Options
from benchmarks.performance.throughput import text_file
from benchmarks.protocol import ROWS, SEQ_LEN
from benchmarks.runners.limits import CopyingThroughMemory
from benchmarks.workloads import Workload

__all__ = ["draw", "measure", "table"]

STAGES = {
    "read": "read",
    "prepare": "check or tokenize",
    "pack": "fill, plan, choose",
    "gather": "gather rows",
    "fields": "make fields",
    "rest": "hand over, count, state",
}


def measure(options: Options) -> dict[str, Any]:
    """Nanoseconds per slot: {source: {stage: [of each round]}}; rounds in turn."""
    workload = Workload("lognormal", options.folder, options.scale)
    workload.make()
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.rounds):
        copying = CopyingThroughMemory(workload)
        copying.prepare()
        seconds = time_passes(copying, options.seconds)["seconds"]
        slots = copying.blocks * copying.block_slots
        found.setdefault("copying", {}).setdefault("copy", []).append(1e9 * seconds / slots)
        for name, dataset in datasets(workload).items():
            for stage, cost in _stages(dataset, options.seconds).items():
                found.setdefault(name, {}).setdefault(stage, []).append(cost)
    return found


def datasets(workload: Workload) -> dict[str, Any]:
    """Endless datasets of all formats."""
    from demo.vocabulary import find_tokenizer
    from streampack import PackedDataset, Topology, sources

    tokenizer, _ = find_tokenizer([])
    tokenizer.threads = 1
    made = {
        "in memory": workload.documents,
        "MDS": sources.MDS(mds_shards(workload), tokens="tokens"),
        "Parquet": sources.Parquet(parquet_ids(workload), tokens="tokens"),
        "WebDataset": sources.WebDataset(sorted(npy_tars(workload).glob("*.tar")), tokens="npy"),
        "text": sources.JSONL(text_file(workload), text="text"),
    }
    return {
        name: PackedDataset(
            source,
            seq_len=SEQ_LEN,
            batch_size=ROWS,
            tokenizer=tokenizer if name == "text" else None,
            epochs=None,
            topology=Topology(),
        )
        for name, source in made.items()
    }


def _stages(dataset: Any, seconds: float) -> dict[str, float]:
    with Batches(dataset, 0, fetch_on("cpu")) as batches:
        _, taken, times = batches.full_speed(seconds)
    slots = len(taken) * ROWS * SEQ_LEN
    spent = {
        "read": times.read_s,
        "prepare": times.prepare_s,
        "pack": times.pack_s,
        "gather": times.gather_s,
        "fields": sum(fetched for _, fetched in taken),
    }
    spent["rest"] = max(sum(map(sum, taken)) - sum(spent.values()), 0.0)
    return {stage: 1e9 * value / slots for stage, value in spent.items()}


def table(figures: dict[str, Any]) -> str:
    """Nanoseconds per slot of each stage."""
    copy = statistics.median(figures["copying"]["copy"])
    rows = []
    for name, found in figures.items():
        if name == "copying":
            continue
        medians = [statistics.median(found[stage]) for stage in STAGES]
        rows.append(
            [name, *(f"{value:.2f}" for value in medians), f"{sum(medians):.2f}",
             f"{sum(medians) / copy:.1f}"]
        )  # fmt: skip
    head = ["ns per slot", *STAGES.values(), "all", "x copying"]
    return f"{markdown_table(head, rows)}\n\nCopying 28 bytes takes {copy:.2f} ns per slot."


def draw(figures: dict[str, Any], path: Path) -> None:
    """Stacked bars; text, which is another scale, is left out."""
    from benchmarks.performance.charts import chart, save

    figure, axes = chart(1)
    figure.set_size_inches(8, 3)
    axis = axes[0]
    copy = statistics.median(figures["copying"]["copy"])
    shown = [name for name in figures if name not in ("copying", "text")]
    left = [0.0] * len(shown)
    colours = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")
    for (stage, label), colour in zip(STAGES.items(), colours, strict=True):
        widths = [statistics.median(figures[name][stage]) for name in shown]
        axis.barh(shown, widths, left=left, color=colour, label=label)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.axvline(copy, color="black", linestyle=":", label="copying 28 bytes")
    axis.set(xlabel="ns per slot")
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize=8, bbox_to_anchor=(1, 1), loc="upper left")
    save(figure, path)
