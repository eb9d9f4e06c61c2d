"""All stages of one rank's loader, and what they cost."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from benchmarks.loader.ranks import Job
from benchmarks.loader.stages import Batches, Waits, fetch_on, own_lanes, prepare, read
from benchmarks.loader.verdict import Costs, Limit, Pace, judge
from streampack import PackedDataset
from streampack.lane.config import warm_up

__all__ = ["Line", "Measured", "Settings", "measure"]


@dataclass(frozen=True)
class Settings:
    """What is measured, and for how long.

    Attributes:
        workers: processes; device: that batches go to; step_s: of the loop, or None.
        seconds: of each stage.
    """

    workers: int
    device: str
    step_s: float | None
    seconds: float


@dataclass(frozen=True)
class Line:
    """A stage of one rank: what it gave, per second."""

    stage: str
    tokens: float
    documents: float
    content: float


@dataclass
class Measured:
    """What one rank found.

    Attributes:
        lines: of the stages, in order; costs, pace: what the verdict is from.
        limit, sentences: the verdict.
        first_s: from making the loader to its first batch; warm_s: until each lane gave one.
        waits: of the loop, 50th and 95th percentile in seconds, None if no step was given.
    """

    lines: list[Line]
    costs: Costs
    pace: Pace
    first_s: float
    warm_s: float
    waits: tuple[float, float] | None
    limit: Limit = "loop"
    sentences: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limit, self.sentences = judge(self.costs, self.pace)


def measure(dataset: PackedDataset, settings: Settings, job: Job) -> Measured:
    """Stage by stage, at the same time on every rank."""
    config = dataset.plan.config
    lanes, seconds = own_lanes(dataset), settings.seconds
    warm_up(config)
    prepare(config, lanes[-1:], 1, seconds)  # compiles what the source needs
    _begin(job, "reading")
    first = read(config, lanes, seconds)
    _begin(job, "preparing")
    prepared = prepare(config, lanes, first.documents, seconds)
    again = prepared.rate
    tokens = max(again.tokens, 1)
    per_token = int(first.content[: again.documents].sum()) / tokens  # bytes
    content = int(first.content.sum())
    first_tokens = max(content / max(per_token, 1e-9) if first.tokens is None else first.tokens, 1)
    table = _Table(per_token)
    table.add("read, the first time", first_tokens, first.documents, first.seconds)
    table.add("read again", again.tokens, again.documents, prepared.read_s)
    what = "check" if config.source.tokenized else "tokenize"
    table.add(f"+ {what}", again.tokens, again.documents, again.seconds)

    _begin(job, "packing")
    with Batches(dataset, 0, fetch_on("cpu")) as batches:
        rate, taken, times = batches.full_speed(seconds)
    came = sum(wait for wait, _ in taken)
    table.add("+ pack", rate.tokens, rate.documents, came)
    table.add("+ fields", rate.tokens, rate.documents, rate.seconds)
    packing = (times.pack_s + times.gather_s) / rate.tokens
    transfer = (rate.seconds - came) / rate.tokens
    batch_tokens = rate.tokens / len(taken)

    loader = _loaders(dataset, settings, job, table)
    if loader.taking_over_s is not None:
        transfer = loader.taking_over_s / batch_tokens
    costs = Costs(
        storage=max(first.seconds / first_tokens - prepared.read_s / tokens, 0.0),
        reading=prepared.read_s / tokens,
        tokenizer=prepared.prepare_s / tokens,
        packing=packing,
        transfer=transfer,
    )
    waits = loader.waits
    pace = Pace(
        workers=settings.workers,
        cores=job.cores,
        batch_tokens=batch_tokens,
        rate=loader.rate,
        device=settings.device,
        step_s=settings.step_s,
        waiting=waits.share if waits else 0.0,
        wait_p95_s=waits.percentile(95) if waits else 0.0,
    )
    percentiles = (waits.percentile(50), waits.percentile(95)) if waits else None
    return Measured(table.lines, costs, pace, loader.first_s, loader.warm_s, percentiles)


class _Table:
    """Stages as rates."""

    def __init__(self, bytes_per_token: float) -> None:
        self.lines: list[Line] = []
        self._bytes_per_token = bytes_per_token

    def add(self, stage: str, tokens: float, documents: float, seconds: float) -> None:
        """A line."""
        rate = tokens / max(seconds, 1e-9)
        self.lines.append(
            Line(stage, rate, documents / max(seconds, 1e-9), rate * self._bytes_per_token)
        )


@dataclass(frozen=True)
class _Loader:
    """The whole loader: its rate, the loop's waits, what taking a batch over costs, its start."""

    rate: float
    waits: Waits | None
    taking_over_s: float | None
    first_s: float
    warm_s: float


def _loaders(dataset: PackedDataset, settings: Settings, job: Job, table: _Table) -> _Loader:
    """With workers, then to the device; the last of them is the loader as it will run."""
    found = None
    if settings.workers:
        _begin(job, f"{settings.workers} workers")
        found = _loader(dataset, settings, "cpu", table, f"+ {settings.workers} workers")
    if settings.device != "cpu":
        _begin(job, settings.device)
        found = _loader(dataset, settings, settings.device, table, f"+ to {settings.device}")
    return found or _loader(dataset, settings, "cpu", None, "")


def _loader(
    dataset: PackedDataset, settings: Settings, device: str, table: _Table | None, stage: str
) -> _Loader:
    pin = device != "cpu"
    with Batches(dataset, settings.workers, fetch_on(device), pin_memory=pin) as batches:
        rate, taken, _ = batches.full_speed(settings.seconds)
        if table is not None:
            table.add(stage, rate.tokens, rate.documents, rate.seconds)
        waits = taking_over = None
        if settings.step_s is not None:
            waits = batches.beside(settings.step_s, settings.seconds)
        if settings.workers:
            taking_over = batches.taking_over_s(2 * rate.seconds / len(taken))
        elif device != "cpu":
            taking_over = sum(fetched for _, fetched in taken) / len(taken)
        per_second = rate.tokens / rate.seconds
        return _Loader(per_second, waits, taking_over, batches.first_s, batches.warm_s)


def _begin(job: Job, what: str) -> None:
    job.together()
    if job.rank == 0:
        print(f"{what} ...", file=sys.stderr, flush=True)
