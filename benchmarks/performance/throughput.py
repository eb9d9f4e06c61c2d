"""Tokens per second against workers: processes, threads, and threads of the tokenizer.

- "processes": `PackedLoader(num_workers=n)`; 0 makes batches in the loop's own process.
- "threads": n threads of one process, each a data-parallel rank with a loader of its own, so that
  nothing but the interpreter lock and the cores is shared.
- "tokenizer threads": no workers, and n threads inside the tokenizer.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.corpus_files import jsonl_texts, mds_shards
from benchmarks.page import markdown_table
from benchmarks.performance.options import Options
from benchmarks.protocol import ROWS, SEQ_LEN
from benchmarks.runners.streampack import fields_of
from benchmarks.workloads import Workload

__all__ = ["draw", "measure", "table"]

COUNTS = (0, 1, 2, 4, 8, 16)
FEWEST_BATCHES = 96
TEXT_BYTES = 6 << 20
KINDS = {
    "token shards (MDS)": ("processes", "threads"),
    "text (jsonl)": ("processes", "threads", "tokenizer threads"),
}


def measure(options: Options) -> dict[str, Any]:
    """M tokens/s: {kind: {mode: {count: [of each round]}}}, rounds in turn, fresh processes."""
    workload = Workload("lognormal", options.folder, options.scale)
    workload.make()
    mds_shards(workload)
    text_file(workload)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {kind: {mode: {} for mode in modes} for kind, modes in KINDS.items()}
    for _ in range(options.rounds):
        for kind, modes in KINDS.items():
            for mode in modes:
                for count in COUNTS:
                    if count > max(cores or 1, 2) or (count == 0 and mode != "processes"):
                        continue
                    with multiprocessing.get_context("spawn").Pool(1) as process:
                        # Not a daemon: it has workers of its own.
                        rate = process.apply(_in_child, (workload, kind, mode, count, options))
                    found[kind][mode].setdefault(str(count), []).append(rate / 1e6)
    return found


def text_file(workload: Workload) -> Path:
    """The machine's Python source as JSON lines."""
    from demo.corpus import gather

    size = max(int(TEXT_BYTES * workload.scale), 1 << 22)  # every lane has documents
    path = workload.folder / workload.name / "texts.jsonl"
    return path if path.exists() else jsonl_texts(workload, gather(size))


def _in_child(workload: Workload, kind: str, mode: str, count: int, options: Options) -> float:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    if mode != "threads":
        processes = count if mode == "processes" else 0
        threads = count if mode == "tokenizer threads" else 1
        return _rate(loader(workload, kind, processes, threads), options.seconds)
    rates = [0.0] * count
    ready = threading.Barrier(count)

    def run(place: int) -> None:
        own = loader(workload, kind, 0, 1, place, count)
        rates[place] = _rate(own, options.seconds, ready)

    started = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return sum(rates)


def loader(
    workload: Workload, kind: str, workers: int, threads: int, rank: int = 0, ranks: int = 1
) -> Any:
    """An endless loader over token shards or text; lanes are the same for any ranks."""
    from demo.vocabulary import find_tokenizer
    from streampack import PackedDataset, PackedLoader, Topology, sources

    tokenizer: Any = None
    source: Any = sources.MDS(mds_shards(workload), tokens="tokens")
    if kind.startswith("text"):
        source = sources.JSONL(text_file(workload), text="text")
        tokenizer, _ = find_tokenizer([])
        tokenizer.threads = threads
    dataset = PackedDataset(
        source,
        seq_len=SEQ_LEN,
        batch_size=ROWS,
        tokenizer=tokenizer,
        epochs=None,
        lanes=16,
        topology=Topology(rank, ranks),
    )
    return PackedLoader(dataset, num_workers=workers)


def _rate(loader: Any, seconds: float, ready: threading.Barrier | None = None) -> float:
    """Tokens per second with all fields, behind one batch of every lane."""
    batches = iter(loader)
    for _ in range(16):
        fields_of(next(batches))
    if ready is not None:
        ready.wait()
    tokens, count, began = 0, 0, time.perf_counter()
    # A lane makes the batches of a round at once, so a few of them say nothing.
    while time.perf_counter() - began < seconds or count < FEWEST_BATCHES:
        batch = next(batches)
        fields_of(batch)
        tokens += batch.num_tokens
        count += 1
    spent = time.perf_counter() - began
    batches.close()
    return tokens / spent


def table(figures: dict[str, Any]) -> str:
    """A row per kind and mode."""
    counts = [
        count
        for count in map(str, COUNTS)
        if any(count in rates for modes in figures.values() for rates in modes.values())
    ]
    rows = [
        [kind, mode, *(_median(rates.get(count)) for count in counts)]
        for kind, modes in figures.items()
        for mode, rates in modes.items()
    ]
    return markdown_table(["M tokens/s", "by", *counts], rows)


def _median(rates: list[float] | None) -> str:
    return f"{statistics.median(rates):.3g}" if rates else ""


def draw(figures: dict[str, Any], path: Path) -> None:
    """A chart per kind."""
    from benchmarks.performance.charts import BEFORE, chart, save

    figure, axes = chart(len(figures))
    for axis, (kind, modes) in zip(axes, figures.items(), strict=True):
        for (mode, rates), style in zip(modes.items(), BEFORE, strict=False):
            across = [int(count) for count in rates]
            medians = [statistics.median(some) for some in rates.values()]
            low = [m - min(some) for m, some in zip(medians, rates.values(), strict=True)]
            high = [max(some) - m for m, some in zip(medians, rates.values(), strict=True)]
            axis.errorbar(across, medians, [low, high], capsize=3, label=mode, **style)
        axis.set(title=kind, xlabel="processes or threads (0: the loop's own)")
        axis.set_ylim(bottom=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False)
    axes[0].set_ylabel("M tokens/s, all fields")
    save(figure, path)
