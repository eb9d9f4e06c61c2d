"""The jobs: which runners do each, and which ratio of two of them has a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.protocol import Runner
from benchmarks.runners.energon import EnergonPacking
from benchmarks.runners.grain import GrainBestFit, GrainConcatThenSplit, GrainFirstFit
from benchmarks.runners.limits import CopyingInCache, CopyingThroughMemory
from benchmarks.runners.litdata import LitdataTokens
from benchmarks.runners.mosaicml import (
    StreamingDatasetIterating,
    StreamingDatasetOneCore,
    StreamingDatasetReading,
)
from benchmarks.runners.nanochat import BestFitCropInPython
from benchmarks.runners.planning import PLANNERS
from benchmarks.runners.pyarrow import PyarrowAlone
from benchmarks.runners.stall import STALLS
from benchmarks.runners.start import FirstBatch, ImportsOnly, ResumeAt90, StartAt0
from benchmarks.runners.streampack import (
    FromMDS,
    FromMDSOneLane,
    FromMDSOneRow,
    FromMDSTwoProcesses,
    FromMemory,
    FromParquet,
    FromWebDataset,
)
from benchmarks.runners.text import TEXT_RUNNERS
from benchmarks.runners.trl import TRLPackDataset
from benchmarks.runners.utilisation import Utilisation
from benchmarks.runners.webdataset import WebDatasetDecoded, WebDatasetRaw
from benchmarks.runners.worker_memory import WorkerMemory
from benchmarks.workloads import WORKLOADS

__all__ = ["JOBS", "Job", "Target", "find_runner"]

#: How a time is compared: of a whole pass, per slot, per document, or as a difference in seconds.
Basis = Literal["pass", "slot", "document", "seconds more"]


@dataclass(frozen=True)
class Target:
    """A row of the table of targets.

    Attributes:
        what: the job in words.
        runner: ours; at_most: what it may reach.
        reference: the runner it is set against, in the same round; None for a figure of its own.
        basis: how the two times are compared.
        figure: the name of a `Measured` runner's figure instead of a time.
    """

    what: str
    runner: type[Runner]
    at_most: float
    reference: type[Runner] | None = None
    basis: Basis = "pass"
    figure: str | None = None


@dataclass(frozen=True)
class Job:
    """Runners that are run in turn, round by round.

    Attributes:
        name: for ``--only``; title: in tables.
        runners: first of them the denominator, if there is one.
        targets: see `Target`.
        workloads: which workloads it is done on.
        rounds: None for as many as the run has; a number where more tell nothing new.
        minutes: about how long it takes at full size, where that is much.
    """

    name: str
    title: str
    runners: Sequence[type[Runner]]
    targets: Sequence[Target] = ()
    workloads: Sequence[str] = WORKLOADS[:1]
    rounds: int | None = None


COPY = CopyingThroughMemory


def _plans() -> Job:
    return Job(
        "plan",
        "Planning alone",
        [runner for pair in PLANNERS.values() for runner in pair],
        [
            Target(f"plan {n:,} lengths / lightbinpack obfd", ours, 0.2, theirs)
            for n, (ours, theirs) in PLANNERS.items()
        ],
    )


def _texts() -> list[Job]:
    return [
        Job(
            f"text-{threads}",
            f"Raw text to full batches, {threads} tokenizer thread{'s' * (threads > 1)}",
            runners,
            [Target(f"{r.label} / encode_batch_fast", r, 1.06, runners[0]) for r in runners[1:]],
        )
        for threads, runners in TEXT_RUNNERS.items()
    ]


def _stalls() -> Job:
    figures = (("waiting, % of wall time", 1.0), ("compute slower, %", 2.0))
    return Job(
        "stall",
        "A training loop beside its loader",
        STALLS,
        [
            Target(f"{r.label}: {name}", r, most, figure=name)
            for r in STALLS
            for name, most in figures
        ],
    )


JOBS = [
    _plans(),
    Job(
        "memory",
        "Documents in memory to full batches",
        [
            COPY, CopyingInCache, FromMemory, EnergonPacking, TRLPackDataset, GrainFirstFit,
            GrainBestFit, GrainConcatThenSplit, BestFitCropInPython,
        ],
        [Target("documents in memory / copying", FromMemory, 2.0, COPY, "slot")],
    ),
    Job(
        "lengths",
        "Other lengths, documents in memory",
        [COPY, FromMemory, EnergonPacking, TRLPackDataset],
        workloads=WORKLOADS[1:],
        rounds=2,
    ),
    Job(
        "mds",
        "MDS token shards on local disk to full batches",
        [
            COPY, FromMDS, FromMDSOneLane, FromMDSOneRow, FromMDSTwoProcesses,
            StreamingDatasetReading, StreamingDatasetIterating, StreamingDatasetOneCore,
            LitdataTokens,
        ],
        [Target("MDS shards / copying", FromMDS, 2.5, COPY, "slot")],
    ),
    Job(
        "webdataset",
        "WebDataset tars of .npy to full batches",
        [COPY, FromWebDataset, WebDatasetRaw, WebDatasetDecoded],
        [
            Target(
                "WebDataset .npy / webdataset's raw iteration",
                FromWebDataset, 0.125, WebDatasetRaw, "document",
            )
        ],
    ),
    Job(
        "parquet",
        "Parquet list<int32> to full batches",
        [COPY, FromParquet, PyarrowAlone],
    ),
    Job(
        "parquet-tokenizing",
        "Parquet list<int32> to full batches, beside tokenizing text",
        [TEXT_RUNNERS[1][0], FromParquet],
        [
            Target(
                "Parquet list<int32> / encode_batch_fast on 1 thread",
                FromParquet, 0.01, TEXT_RUNNERS[1][0], "slot",
            )
        ],
    ),
    *_texts(),
    Job(
        "utilisation",
        "Utilisation",
        [Utilisation],
        [
            Target("utilisation, points behind planning over everything", Utilisation, 0.05,
                   figure="points behind"),
            Target("tokens lost", Utilisation, 0, figure="tokens lost"),
        ],
        workloads=WORKLOADS,
        rounds=1,
    ),
    Job(
        "start",
        "From the start of a process to the first batch",
        [ImportsOnly, FirstBatch],
        [Target("process start to first batch, seconds more than importing torch and numpy",
                FirstBatch, 1.5, ImportsOnly, "seconds more")],
    ),
    Job(
        "resume",
        "Resuming",
        [StartAt0, ResumeAt90],
        [Target("resume at 90 % / start at 0", ResumeAt90, 2.0, StartAt0)],
    ),
    Job(
        "worker-memory",
        "Memory of a worker",
        [WorkerMemory],
        [
            Target("memory of a worker, MiB more than windows and interpreter", WorkerMemory, 64,
                   figure="more than both, MiB"),
        ],
        rounds=1,
    ),
    _stalls(),
]  # fmt: skip


def find_runner(job: str, runner: str) -> type[Runner]:
    """A runner by its job and its class's name."""
    (found,) = (j for j in JOBS if j.name == job)
    return next(r for r in found.runners if r.__name__ == runner)
