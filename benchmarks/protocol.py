"""The protocol of the suite: runners, and how their time is taken.

A runner is one job done by one library, in a process of its own. It prepares (files, imports,
compiled kernels; nothing of this is timed), its output is checked once, and then passes over
`Timed.batches` are timed, or `Measured.measure` gives figures. Modules of runners import their
library inside methods only, so that they can be listed where it is not installed.
"""

from __future__ import annotations

import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.workloads import Workload

__all__ = [
    *("ROWS", "SEQ_LEN", "Counts", "Measured", "Runner", "Timed", "WrongOutputError"),
    *("status_mib", "time_passes"),
]

SEQ_LEN = 2048
ROWS = 8  # per batch, where a runner gives batches of rows
MOST_PASSES = 500
WARM_S = 0.5


class WrongOutputError(Exception):
    """A runner's output does not fit its job, so its times would mean nothing."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a pass.

    Attributes:
        slots: of all rows that hold a token, padding included; tokens: without padding.
        documents: delivered, at least in part; documents_cut: in more than one piece, or cropped.
        checksum: sum of all delivered ids, or None where ids are not looked at.
    """

    slots: int = 0
    tokens: int = 0
    documents: int = 0
    documents_cut: int = 0
    checksum: int | None = None


class Runner(ABC):
    """One job done by one library.

    Attributes:
        label: names library and job in tables.
        settings: the settings chosen, in words; delivers: contents of a finished batch.
        environment: name of the virtual environment it needs (see `benchmarks.environments`),
            None for the project's own.
        variables: environment variables of its process.
    """

    label: ClassVar[str]
    settings: ClassVar[str] = ""
    delivers: ClassVar[str] = ""
    environment: ClassVar[str | None] = None
    variables: ClassVar[Mapping[str, str]] = {}

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def prepare(self) -> None:
        """Write files that are missing, import, compile; not timed."""
        return


class Timed(Runner):
    """A job that ends: a pass over `batches` is timed.

    Attributes:
        reference: class name of the runner that it is compared with; None: the job's first.
        first: time the first pass of the process alone, for which `prepare` warms up.
    """

    reference: ClassVar[str | None] = None
    first: ClassVar[bool] = False

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """A fresh pass; each item is a batch that is done."""

    @abstractmethod
    def check(self) -> Counts:
        """A pass that is not timed: compare the output with the workload, and count it.

        Raises:
            WrongOutputError: the output does not fit the job.
        """

    def expect_all(self, counts: Counts) -> None:
        """Raise unless every token of the workload was delivered once."""
        total, checksum = self.workload.num_tokens, self.workload.checksum
        if counts.tokens != total or counts.checksum not in (None, checksum):
            raise WrongOutputError(
                f"{self.label} delivered {counts.tokens} tokens with checksum {counts.checksum}, "
                f"the workload has {total} with {checksum}."
            )

    def expect_arrays(self) -> Counts:
        """The counts of batches that are one document's ids each, all of them."""
        tokens = checksum = documents = 0
        for ids in self.batches():
            documents += 1
            tokens += len(ids)
            checksum += int(ids.sum(dtype="int64"))
        counts = Counts(tokens, tokens, documents, 0, checksum)
        self.expect_all(counts)
        return counts


class Measured(Runner):
    """A job with other results than the time of a pass."""

    @abstractmethod
    def measure(self, seconds: float) -> dict[str, dict[str, float]]:
        """Figures by row and column of its job's table; each takes about so many seconds."""


def time_passes(runner: Timed, seconds: float) -> dict[str, float]:
    """Medians over whole passes for about so long, at least one, behind a part that warms up."""
    if not runner.first:
        with closing(runner.batches()) as batches:  # type: ignore[type-var]
            end = time.perf_counter() + WARM_S
            for _ in takewhile(lambda _: time.perf_counter() < end, batches):
                pass
    passes: list[float] = []
    firsts: list[float] = []
    processor: list[float] = []
    most = 1 if runner.first else MOST_PASSES
    while not passes or (sum(passes) < seconds and len(passes) < most):
        began, used = time.perf_counter(), _processor_s()
        times = [time.perf_counter() for _ in runner.batches()]
        passes.append(time.perf_counter() - began)
        processor.append(_processor_s() - used)
        firsts.append(times[0] - began)
    found = {"seconds": passes, "processor_s": processor, "first_batch_s": firsts}
    return {name: statistics.median(times) for name, times in found.items()}


def _processor_s() -> float:
    """Return processor time of this process and of children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def status_mib(field: str, process: int | str = "self") -> float:
    """A field of /proc/<process>/status in MiB; 0 where the system does not tell."""
    status = Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
