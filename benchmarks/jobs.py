"""The jobs of the suite: their runners and the columns of their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.protocol import Runner
from benchmarks.runners.energon import EnergonPacking
from benchmarks.runners.grain import GrainBestFit, GrainConcatThenSplit, GrainFirstFit
from benchmarks.runners.limits import CopyingThroughMemory
from benchmarks.runners.litdata import LitdataTokens
from benchmarks.runners.mosaicml import StreamingDatasetIterating, StreamingDatasetReading
from benchmarks.runners.parts import Costs, Stages, Windows, Workers
from benchmarks.runners.planning import PLANNERS
from benchmarks.runners.pyarrow import PyarrowAlone
from benchmarks.runners.stall import STALLS
from benchmarks.runners.start import FirstBatch, ImportsOnly
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
from benchmarks.runners.webdataset import WebDatasetDecoded, WebDatasetRaw
from benchmarks.runners.worker_memory import WorkerMemory
from benchmarks.workloads import WORKLOADS

__all__ = ["JOBS", "Job", "find_runner"]

COPY = CopyingThroughMemory
BATCHES = ("M tokens/s", "x copying", "rows used", "tokens lost", "documents cut")


@dataclass(frozen=True)
class Job:
    """Runners that are run in turn, round by round.

    Attributes:
        name: for ``--only``; title, caption: above its table.
        runners: others are compared with the first, unless they name another.
        columns: of the table of times; compared: the one of ratios; form: of other figures;
            clock: of the times compared, "seconds" or "processor_s".
        workloads: the workloads it is done on.
        rounds: None for as many as the run has; a number where more tell nothing new.
    """

    name: str
    title: str
    caption: str
    runners: Sequence[type[Runner]]
    columns: Sequence[str] = BATCHES
    compared: str = "x copying"
    clock: str = "seconds"
    form: str = ".3g"
    workloads: Sequence[str] = WORKLOADS[:1]
    rounds: int | None = None


JOBS = [
    Job(
        "plan",
        "Planning alone",
        "From lengths to rows, without tokens.",
        [runner for pair in PLANNERS.values() for runner in pair],
        columns=("ms", "x lightbinpack", "rows used"),
        compared="x lightbinpack",
    ),
    Job(
        "memory",
        "Documents in memory to full batches",
        "",
        [COPY, FromMemory, EnergonPacking, TRLPackDataset, GrainFirstFit, GrainBestFit,
         GrainConcatThenSplit],
        columns=(*BATCHES, "peak MiB", "first batch, ms"),
    ),
    Job(
        "lengths",
        "Other lengths",
        "Documents in memory, as above.",
        [COPY, FromMemory, EnergonPacking, TRLPackDataset],
        columns=BATCHES[:3],
        workloads=WORKLOADS[1:],
        rounds=2,
    ),
    Job(
        "mds",
        "MDS token shards on local disk to full batches",
        "StreamingDataset gives documents, litdata blocks without boundaries.",
        [COPY, FromMDS, FromMDSOneLane, FromMDSOneRow, FromMDSTwoProcesses,
         StreamingDatasetReading, StreamingDatasetIterating, LitdataTokens],
        columns=(*BATCHES, "first batch, ms"),
    ),
    Job(
        "webdataset",
        "WebDataset tars of .npy to full batches",
        "webdataset gives documents.",
        [COPY, FromWebDataset, WebDatasetRaw, WebDatasetDecoded],
        columns=BATCHES[:3],
    ),
    Job(
        "parquet",
        "Parquet list<int32> to full batches",
        "pyarrow gives tables.",
        [COPY, FromParquet, PyarrowAlone],
        columns=BATCHES[:3],
    ),
    *(
        Job(
            f"text-{vocabulary.split()[0].lower()}",
            f"Raw text to full batches, {vocabulary}",
            "Python source with the vocabulary. Tokens per second of processor time, with "
            "worker processes included, and of wall time. Ratios are of processor time.",
            runners,
            columns=("M tokens/s of a core", "M tokens/s", "x engine alone", "first batch, ms"),
            compared="x engine alone",
            clock="processor_s",
        )
        for vocabulary, runners in TEXT_RUNNERS.items()
    ),
    Job(
        "stages",
        "Stages of a batch",
        'Nanoseconds per slot of a warm loader in the loop\'s own process. "Read" is bytes to '
        'blocks of ids, "pack" the window and its plan, "fields" the pass that writes 28 bytes.',
        [Stages],
        form=".2f",
    ),
    Job(
        "windows",
        "Windows and lanes",
        "The share of slots that hold a token, %. Half of a window's tokens may stay for the next "
        "round, so a window packs like a flushed one several times its size. A lane packs its end "
        "from the remaining documents: that loss grows with lanes divided by windows per lane.",
        [Windows],
        form=".2f",
        workloads=WORKLOADS,
        rounds=1,
    ),
    Job(
        "costs",
        "Cost of a batch",
        "Nanoseconds of processor time per slot. All other settings are the usual ones.",
        [Costs],
        form=".2f",
    ),
    Job(
        "workers",
        "Workers",
        "M tokens/s of `PackedLoader(num_workers=n)`.",
        [Workers],
    ),
    Job(
        "stall",
        "A training loop beside its loader",
        "The loop computes 20 ms of matrix products per batch on one thread; its loader could give "
        "four batches in that time. Waiting lasts until all fields of a batch exist.",
        STALLS,
    ),
    Job(
        "start",
        "From the start of a process to the first batch",
        "Kernels were compiled before.",
        [ImportsOnly, FirstBatch],
        columns=("first batch, ms",),
    ),
    Job(
        "worker-memory",
        "Memory of a worker",
        "MiB, over 10 G tokens. A worker never runs all of torch, so it may stay below a process "
        "that imports it.",
        [WorkerMemory],
        form=".1f",
        rounds=1,
    ),
]  # fmt: skip


def find_runner(job: str, runner: str) -> type[Runner]:
    """A runner by its job and its class's name."""
    (found,) = (j for j in JOBS if j.name == job)
    return next(r for r in found.runners if r.__name__ == runner)
