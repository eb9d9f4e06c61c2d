"""The parts of a batch's cost: stages, windows, lanes, shards and workers."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.corpus_files import jsonl_texts, mds_shards, npy_tars, parquet_ids
from benchmarks.protocol import ROWS, SEQ_LEN, Measured, time_passes
from benchmarks.runners.limits import CopyingThroughMemory
from benchmarks.runners.streampack import fields_of
from benchmarks.workloads import Workload

__all__ = ["Costs", "Stages", "Windows", "Workers"]

TEXT_BYTES = 6 << 20
FEWEST_BATCHES = 96  # a lane makes the batches of a round at once, so a few of them say nothing


def text_file(workload: Workload) -> Path:
    """The machine's Python source as JSON lines."""
    from demo.corpus import gather

    size = max(int(TEXT_BYTES * workload.scale), 1 << 22)  # every lane has documents
    path = workload.folder / workload.name / "texts.jsonl"
    return path if path.exists() else jsonl_texts(workload, gather(size))


def endless(source: Any, text: bool = False, workers: int = 0, **options: Any) -> Any:
    """A loader without an end; of texts, with a tokenizer."""
    from demo.vocabulary import find_tokenizer
    from streampack import PackedDataset, PackedLoader, Topology

    options = {"seq_len": SEQ_LEN, "batch_size": ROWS, "epochs": None, **options}
    if text:
        options["tokenizer"], _ = find_tokenizer([])
    dataset = PackedDataset(source, topology=Topology(), **options)
    return PackedLoader(dataset, num_workers=workers)


def taken(batches: Iterator[Any], seconds: float) -> tuple[int, int, float, float]:
    """Batches, tokens, seconds, and seconds of making fields, for about so long."""
    count = tokens = 0
    fields, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds or count < FEWEST_BATCHES:
        batch = next(batches)
        came = time.perf_counter()
        fields_of(batch)
        fields += time.perf_counter() - came
        tokens += batch.num_tokens
        count += 1
    return count, tokens, time.perf_counter() - began, fields


class Stages(Measured):
    """Time of stages, by format: the lanes' own clocks, and the work around them."""

    label = "stages"

    def measure(self, seconds: float) -> dict[str, dict[str, float]]:
        """Nanoseconds per slot."""
        from streampack import sources

        workload = self.workload
        copying = CopyingThroughMemory(workload)
        copying.prepare()
        slots = copying.blocks * copying.block_slots
        copy = 1e9 * time_passes(copying, seconds)["seconds"] / slots
        tars = sorted(npy_tars(workload).glob("*.tar"))
        made = {
            "in memory": workload.documents,
            "MDS": sources.MDS(mds_shards(workload), tokens="tokens"),
            "Parquet": sources.Parquet(parquet_ids(workload), tokens="tokens"),
            "WebDataset": sources.WebDataset(tars, tokens="npy"),
            "text": sources.JSONL(text_file(workload), text="text"),
        }
        found = {}
        for name, source in made.items():
            costs = _stages(endless(source, name == "text"), seconds)
            found[name] = {**costs, "all": sum(costs.values())}
            found[name]["x copying"] = found[name]["all"] / copy
        return {**found, "copying 28 bytes": {"all": copy}}


def _stages(loader: Any, seconds: float) -> dict[str, float]:
    with closing(iter(loader)) as batches:
        taken(batches, 0)
        before = asdict(loader.metrics().times)
        count, _, spent, fields = taken(batches, seconds)
        after = asdict(loader.metrics().times)
    per = 1e9 / (count * ROWS * SEQ_LEN)
    stages = {
        "read": ("read_s", "decode_s"),
        "check or tokenize": ("prepare_s",),
        "pack": ("pack_s",),
        "gather": ("gather_s",),
    }
    costs = {
        stage: sum(after[name] - before[name] for name in names) * per
        for stage, names in stages.items()
    }
    rest = max(spent * per - sum(costs.values()) - fields * per, 0.0)
    return {**costs, "fields": fields * per, "hand over": rest}


class Windows(Measured):
    """Utilisation by window and lanes; of lengths alone, in a dry run that plans as a lane does."""

    label = "windows"
    ROWS_OF_WINDOWS = (16, 64, 128, 256, 512)
    LANES = (1, 4, 12, 32)

    def measure(self, seconds: float) -> dict[str, dict[str, float]]:
        """Percent."""
        from streampack.packing import BestFitDecreasing
        from streampack.window.config import DEFAULT_ROWS

        lengths = self.workload.lengths
        packer = BestFitDecreasing(seq_len=SEQ_LEN)
        whole = packer.plan(lengths, final=True, seed=0).metrics(lengths).utilisation
        found = {f"{n} rows, one lane": _in_lanes(lengths, 1, n) for n in self.ROWS_OF_WINDOWS}
        found["everything at once"] = whole
        for lanes in self.LANES:
            name = f"{DEFAULT_ROWS} rows, {lanes} lane{'s' * (lanes > 1)}"
            found[name] = _in_lanes(lengths, lanes, DEFAULT_ROWS)
        return {name: {self.workload.name: 100 * share} for name, share in found.items()}


def _in_lanes(lengths: NDArray[np.int64], lanes: int, rows: int) -> float:
    """Utilisation of so many lanes with windows of so many rows, each with its share."""
    from streampack import WindowConfig
    from streampack.forecasts.dry_run import stream_plan
    from streampack.packing import BestFitDecreasing

    packer, window = BestFitDecreasing(seq_len=SEQ_LEN), WindowConfig(rows=rows)
    plans = (
        stream_plan(part, packer, window, batch_tokens=SEQ_LEN)
        for part in np.array_split(lengths, lanes)
    )
    return float(lengths.sum() / sum(int(plan.seq_len.sum(dtype=np.int64)) for plan in plans))


class Costs(Measured):
    """A process's cost of a batch, over documents that cost nothing to read."""

    label = "costs"
    USUAL = {"shards": 100_000, "lanes": 12, "window rows": 320, "batch rows": ROWS}  # noqa: RUF012
    LEAST = {"shards": 1_000, "lanes": 1, "window rows": 32, "batch rows": 1}  # noqa: RUF012
    MOST = {"shards": 1_000_000, "lanes": 192, "window rows": 2048, "batch rows": 32}  # noqa: RUF012

    def measure(self, seconds: float) -> dict[str, dict[str, float]]:
        """Nanoseconds of processor time per slot, fields included."""
        lengths = self.workload.lengths[:4096]
        found: dict[str, dict[str, float]] = {}
        for what, usual in self.USUAL.items():
            least, most = self.LEAST[what], self.MOST[what]
            costs = found[f"{what}: {least:,}, {usual:,}, {most:,}"] = {}
            for column, value in (("least", least), ("usual", usual), ("most", most)):
                costs[column] = _cost(lengths, {**self.USUAL, what: value}, seconds)
        return found


def _cost(lengths: NDArray[np.int64], setting: dict[str, int], seconds: float) -> float:
    """The mean, once every lane has had three full windows."""
    from benchmarks.synthetic import Synthetic
    from streampack import WindowConfig

    rows, window, lanes = (setting[name] for name in ("batch rows", "window rows", "lanes"))
    # Shards of 64 documents, so that they end all the time.
    source = Synthetic(lengths, shards=setting["shards"], shard_documents=64)
    loader = endless(source, batch_size=rows, window=WindowConfig(rows=window), lanes=lanes)
    with closing(iter(loader)) as batches:
        for _ in range(3 * window * lanes // rows):
            next(batches)
        before = time.process_time()
        count, *_ = taken(batches, seconds)
        return 1e9 * (time.process_time() - before) / (count * rows * SEQ_LEN)


class Workers(Measured):
    """Tokens per second by worker processes."""

    label = "workers"
    LANES = 16

    def measure(self, seconds: float) -> dict[str, dict[str, float]]:
        """M tokens/s with all fields."""
        from streampack import sources

        shards = sources.MDS(mds_shards(self.workload), tokens="tokens")
        texts = sources.JSONL(text_file(self.workload), text="text")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        counts = [count for count in (0, 1, 2, 4, 8) if count <= max(cores, 2)]
        lanes = min(self.LANES, max(len(self.workload.lengths) // 100, 1))
        found: dict[str, dict[str, float]] = {}
        for name, source in (("MDS", shards), ("text", texts)):
            found[f"{name}, processes"] = {
                f"n = {n}": self.rate(endless(source, name == "text", n, lanes=lanes), seconds)
                for n in counts
            }
        return found

    def rate(self, loader: Any, seconds: float) -> float:
        """M tokens per second, behind a batch of every lane."""
        with closing(iter(loader)) as batches:
            for _ in range(self.LANES):
                fields_of(next(batches))
            rates = [taken(batches, seconds / 3)[1:3] for _ in range(3)]
        return statistics.median(tokens / spent for tokens, spent in rates) / 1e6
