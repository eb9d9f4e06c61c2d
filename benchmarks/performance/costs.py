"""What a batch costs one process, and that shards, lanes and the place in the epoch do not matter.

Processor time (`time.process_time`), fields included, over a synthetic source whose documents cost
nothing to read. What is not varied is as in `USUAL`.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.page import markdown_table
from benchmarks.performance.options import Options
from benchmarks.protocol import ROWS, SEQ_LEN
from benchmarks.runners.streampack import fields_of
from benchmarks.synthetic import Synthetic
from benchmarks.workloads import Workload
from streampack import PackedDataset, PackedLoader, Topology, WindowConfig

__all__ = ["draw", "measure", "table"]

USUAL = {"shards": 100_000, "lanes": 12, "window": 320, "rows": ROWS}
SWEEPS = {
    "shards": (1_000, 10_000, 100_000, 1_000_000),
    "lanes": (1, 4, 12, 48, 192),
    "window": (32, 128, 320, 2048),
    "rows": (1, 4, 8, 32),
}
SHARD_DOCUMENTS = 64  # so that shards end all the time
CHUNK_ROWS = 256  # rows whose batches are timed together
EPOCH_SHARDS = 5_000
WORDS = {
    "shards": f"shards in the manifest, {SHARD_DOCUMENTS} documents each",
    "lanes": "lanes in the process",
    "window": "rows of the window",
    "rows": "rows of a batch",
    "epoch": "tenth of the epoch",
}


def measure(options: Options) -> dict[str, Any]:
    """Nanoseconds per slot: {what varies: {value: [of each round]}}."""
    workload = Workload("lognormal", options.folder, options.scale)
    workload.make()
    lengths = workload.lengths[:4096]
    sources = {
        shards: Synthetic(lengths, shards=shards, shard_documents=SHARD_DOCUMENTS)
        for shards in SWEEPS["shards"]
    }
    found: dict[str, dict[str, list[float]]] = {what: {} for what in (*SWEEPS, "epoch")}
    for _ in range(options.rounds):
        for what, values in SWEEPS.items():
            for value in values:
                setting = {**USUAL, what: value}
                cost = _cost(sources[setting["shards"]], setting, options.seconds)
                found[what].setdefault(str(value), []).append(cost)
        shards = max(int(EPOCH_SHARDS * min(options.scale, 1)), 64)
        source = Synthetic(lengths, shards=shards, shard_documents=SHARD_DOCUMENTS)
        for number, cost in enumerate(_through_an_epoch(source)):
            found["epoch"].setdefault(str(number + 1), []).append(cost)
    return found


def _loader(source: Synthetic, setting: dict[str, int], epochs: int | None) -> PackedLoader:
    dataset = PackedDataset(
        source,
        seq_len=SEQ_LEN,
        batch_size=setting["rows"],
        window=WindowConfig(rows=setting["window"]),
        lanes=setting["lanes"],
        epochs=epochs,
        topology=Topology(),
    )
    return PackedLoader(dataset)


def _cost(source: Synthetic, setting: dict[str, int], seconds: float) -> float:
    """Median over chunks of batches, once every lane has had three full windows."""
    batches: Any = iter(_loader(source, setting, None))
    rows = setting["rows"]
    for _ in range(3 * setting["window"] * setting["lanes"] // rows):
        next(batches)
    costs: list[float] = []
    began = time.perf_counter()
    while len(costs) < 8 or time.perf_counter() - began < seconds:
        chunk = max(CHUNK_ROWS // rows, 1)
        before = time.process_time()
        for _ in range(chunk):
            fields_of(next(batches))
        costs.append((time.process_time() - before) / (chunk * rows * SEQ_LEN))
    batches.close()
    # Rounds make many batches at once, so chunks differ: the mean tells, not the median of chunks.
    return 1e9 * statistics.fmean(costs)


def _through_an_epoch(source: Synthetic) -> list[float]:
    """Nanoseconds per slot in each tenth of a whole epoch, first windows and drain included."""
    total = sum(1 for _ in _loader(source, USUAL, 1))
    found: list[float] = []
    before, count = time.process_time(), 0
    for number, batch in enumerate(_loader(source, USUAL, 1)):
        fields_of(batch)
        count += 1
        if (number + 1) * 10 // total > len(found):
            now = time.process_time()
            found.append(1e9 * (now - before) / (count * USUAL["rows"] * SEQ_LEN))
            before, count = now, 0
    return found


def table(figures: dict[str, Any]) -> str:
    """A row per thing that varies."""
    rows = []
    for what, values in figures.items():
        usual = f" (otherwise {USUAL[what]:,})" if what in USUAL else ""
        cells = "; ".join(
            f"{int(value):,}: {statistics.median(rounds):.2f}" for value, rounds in values.items()
        )
        medians = [statistics.median(rounds) for rounds in values.values()]
        rows.append([WORDS[what] + usual, cells, f"{max(medians) / min(medians):.2f}"])
    return markdown_table(
        ["what varies", "ns of processor time per slot", "dearest / cheapest"], rows
    )


def draw(figures: dict[str, Any], path: Path) -> None:
    """A chart per thing that varies."""
    from benchmarks.performance.charts import BEFORE, chart, save

    figure, axes = chart(len(figures), 2.8)
    top = 1.15 * max(max(rounds) for values in figures.values() for rounds in values.values())
    for axis, (what, values) in zip(axes, figures.items(), strict=True):
        across = [int(value) for value in values]
        medians = [statistics.median(rounds) for rounds in values.values()]
        low = [m - min(rounds) for m, rounds in zip(medians, values.values(), strict=True)]
        high = [max(rounds) - m for m, rounds in zip(medians, values.values(), strict=True)]
        axis.errorbar(across, medians, [low, high], capsize=3, **BEFORE[0])
        axis.set(ylim=(0, top))
        axis.set_xlabel(WORDS[what], fontsize=8)
        if what != "epoch":
            axis.set_xscale("log")
    axes[0].set_ylabel("ns of processor time per slot")
    save(figure, path)
