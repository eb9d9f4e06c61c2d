"""What a runner is: one job done by one library, timed from outside by the harness.

A runner lives in a process of its own. The harness makes it, lets it prepare (files, imports,
compiled kernels, nothing of which is timed), checks its output once, and then times passes of
`Timed.batches` or takes the figures of `Measured.measure`. Modules of runners import the library
they run inside methods only, so that they can be listed where it is not installed.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.workloads import Workload

__all__ = ["SEQ_LEN", "Counts", "Measured", "Runner", "Timed", "WrongOutputError"]

SEQ_LEN = 2048
ROWS = 8  # per batch, where a runner gives batches of rows


class WrongOutputError(Exception):
    """A runner's output is not what its job asks for; its times would mean nothing."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a pass delivers.

    Attributes:
        slots: of all rows, padding included; tokens: those that are not padding.
        empty_slots: of batches that hold padding only, which `slots` leaves out.
        documents: delivered, at least in part; documents_cut: in more than one piece, or cropped.
        checksum: sum of all delivered ids, or None where ids are not looked at.
    """

    slots: int = 0
    tokens: int = 0
    documents: int = 0
    documents_cut: int = 0
    checksum: int | None = None
    empty_slots: int = 0


class Runner(ABC):
    """One job done by one library.

    Attributes:
        label: names library and job in tables.
        settings: the settings chosen, in words, and why where there was a choice.
        delivers: what stands in memory when a batch counts as done.
        environment: name of the virtual environment it needs (see `benchmarks.environments`),
            None for the project's own.
        variables: environment variables of its process; cores: pinned to so many, None to none.
    """

    label: ClassVar[str]
    settings: ClassVar[str] = ""
    delivers: ClassVar[str] = ""
    environment: ClassVar[str | None] = None
    variables: ClassVar[Mapping[str, str]] = {}
    cores: ClassVar[int | None] = None

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def prepare(self) -> None:
        """Write files that are missing, import, compile; not timed."""
        return

    def pin(self) -> None:
        """Keep the process to `cores` cores."""
        if self.cores is not None and hasattr(os, "sched_setaffinity"):
            allowed = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, allowed[: self.cores])


class Timed(Runner):
    """A job that ends: the harness times a pass over `batches`."""

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """A fresh pass; each item is a batch that is done."""

    @abstractmethod
    def check(self) -> Counts:
        """A pass that is not timed: compare the output with the workload, and count it.

        Raises:
            WrongOutputError: the output is not what the job asks for.
        """

    def expect_all(self, counts: Counts) -> None:
        """Raise unless every token of the workload was delivered once."""
        total, checksum = self.workload.num_tokens, self.workload.checksum
        if counts.tokens != total or counts.checksum not in (None, checksum):
            raise WrongOutputError(
                f"{self.label} delivered {counts.tokens} tokens with checksum {counts.checksum}, "
                f"the workload has {total} with {checksum}."
            )


class Measured(Runner):
    """A job whose result is not the time of a pass."""

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """Figures by name."""
