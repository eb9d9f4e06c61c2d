"""The stages of a loader, measured one by one on a real source."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack import Documents, PackedDataset, PackedLoader, Texts
from streampack.lane.config import LaneConfig
from streampack.metrics import LaneTimes
from streampack.sources.skips import Skips
from streampack.streams.lane_stream import open_stream

__all__ = [
    "Batches",
    "Blocks",
    "Fetch",
    "Prepared",
    "Rate",
    "Waits",
    "fetch_on",
    "own_lanes",
    "prepare",
    "read",
]

Fetch = Callable[[Any], object]
FEWEST_STEPS = 20  # of a loop beside the loader
TAKEN_OVER = 20  # batches whose taking over is timed


@dataclass(frozen=True)
class Rate:
    """What a stage gave in how many seconds."""

    seconds: float
    documents: int
    tokens: int = 0


@dataclass(frozen=True)
class Blocks:
    """What was read in how many seconds.

    Attributes:
        documents: how many; tokens: of them, None where they are not tokenized.
        content: (documents,) int64, bytes of each as read: of its UTF-8 text, or its ids.
    """

    seconds: float
    documents: int
    tokens: int | None
    content: NDArray[np.int64]


@dataclass(frozen=True)
class Prepared:
    """Reading again and preparing: what both gave, and the seconds of each."""

    rate: Rate
    read_s: float
    prepare_s: float


@dataclass(frozen=True)
class Waits:
    """A loop beside the loader: its waits for batches, and its own time, in seconds."""

    waits: list[float]
    steps: float

    @property
    def share(self) -> float:
        """Of the loop's time."""
        return sum(self.waits) / (sum(self.waits) + self.steps)

    def percentile(self, percent: float) -> float:
        """Of the waits, in seconds."""
        return float(np.percentile(self.waits, percent))


def read(config: LaneConfig, lanes: list[int], seconds: float) -> Blocks:
    """The blocks of these lanes, one lane after the other, for so long or to the epoch's end."""
    readers = config.source.lanes(config.lanes, seed=config.seed, epoch=0, shuffle=config.shuffle)
    spent, tokens = 0.0, 0
    content = [np.zeros(0, dtype=np.int64)]
    for lane in lanes:
        blocks = readers[lane].read(None, Skips(config.on_error, config.skip_limit))
        while spent < seconds:
            began = time.perf_counter()
            item = next(blocks, None)
            spent += time.perf_counter() - began
            if item is None:
                break
            block = item[0]
            if isinstance(block, Documents):
                tokens += block.num_tokens
                content.append(block.lengths * block.tokens.itemsize)
            elif isinstance(block, Texts):
                sizes = [len(str(text).encode("utf-8", "replace")) for text in block.texts]
                content.append(np.array(sizes, dtype=np.int64))
    every = np.concatenate(content)
    return Blocks(spent, len(every), tokens if config.source.tokenized else None, every)


def prepare(config: LaneConfig, lanes: list[int], documents: int, seconds: float) -> Prepared:
    """The same documents again, tokenized or checked; at most so many, for at most so long."""
    once = replace(config, epochs=1)
    times = LaneTimes()
    seen = tokens = 0
    for lane in lanes:
        stream = open_stream(once, lane, skips=Skips(config.on_error), times=times)
        while seen < documents and times.read_s + times.prepare_s < seconds:
            block = stream.peek()
            if block is None:
                break
            seen += len(block)
            tokens += block.num_tokens
            stream.consume(len(block))
    spent = times.read_s + times.prepare_s
    return Prepared(Rate(spent, seen, tokens), times.read_s, times.prepare_s)


def fetch_on(device: str) -> Fetch:
    """What makes a batch usable: its fields, on the host or on a device."""
    if device == "cpu":
        return lambda batch: (
            batch.input_ids, batch.position_ids, batch.labels, batch.document_ids,
        )  # fmt: skip
    import torch

    def fetch(batch: Any) -> object:
        moved = batch.to(device, non_blocking=True)
        fields = moved.input_ids, moved.position_ids, moved.labels, moved.document_ids
        getattr(torch, torch.device(device).type).synchronize()
        return fields

    return fetch


def own_lanes(dataset: PackedDataset) -> list[int]:
    """The lanes of this rank."""
    return dataset.topology.lanes(0, dataset.plan.config.lanes)


class Batches:
    """A loader that runs on, warmed up with a batch of every lane.

    Args:
        dataset: endless; workers: processes; fetch: see `fetch_on`; pin_memory: for a device.
    """

    def __init__(
        self, dataset: PackedDataset, workers: int, fetch: Fetch, *, pin_memory: bool = False
    ) -> None:
        self._fetch = fetch
        began = time.perf_counter()
        self._loader = PackedLoader(dataset, num_workers=workers, pin_memory=pin_memory)
        self._batches: Any = iter(self._loader)
        fetch(next(self._batches))
        self.first_s = time.perf_counter() - began
        for _ in own_lanes(dataset)[1:]:
            fetch(next(self._batches))
        self.warm_s = time.perf_counter() - began

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *error: object) -> None:
        self._batches.close()

    def take(self) -> tuple[float, float]:
        """One batch: seconds until it came, and until it was fetched."""
        began = time.perf_counter()
        batch = next(self._batches)
        came = time.perf_counter()
        self._fetch(batch)
        return came - began, time.perf_counter() - came

    def full_speed(self, seconds: float) -> tuple[Rate, list[tuple[float, float]], LaneTimes]:
        """As fast as it goes: what came, each batch's seconds, and where lanes spent theirs."""
        before = self._loader.metrics()
        taken = [self.take()]
        began = time.perf_counter()
        while time.perf_counter() - began < seconds or len(taken) < FEWEST_STEPS:
            taken.append(self.take())
        after = self._loader.metrics()
        rate = Rate(
            sum(map(sum, taken)),
            after.composition.documents - before.composition.documents,
            after.composition.placed - before.composition.placed,
        )
        return rate, taken, after.times - before.times

    def beside(self, step_s: float, seconds: float) -> Waits:
        """A loop that is busy elsewhere (the device computes) for `step_s` per batch."""
        for _ in self._steps(step_s, FEWEST_STEPS // 4):
            self.take()  # until what waits in queues is what it will be
        steps = max(int(seconds / step_s), FEWEST_STEPS)
        waits = [sum(self.take()) for _ in self._steps(step_s, steps)]
        return Waits(waits, steps * step_s)

    def taking_over_s(self, pause_s: float) -> float:
        """Seconds that a batch costs the loop when it is there already."""
        return statistics.median(sum(self.take()) for _ in self._steps(pause_s, TAKEN_OVER))

    @staticmethod
    def _steps(step_s: float, count: int) -> Iterator[None]:
        for _ in range(count):
            time.sleep(step_s)
            yield
