"""Medians and ratios of a run's samples."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Sample
from benchmarks.jobs import Basis, Job, Target
from benchmarks.protocol import Runner
from benchmarks.workloads import Workload

__all__ = ["Line", "Reached", "lines_of", "reached_of"]


@dataclass(frozen=True)
class Line:
    """A runner's medians in one job on one workload; None where there is nothing.

    Attributes:
        runner, workload, error: which, and why there is nothing.
        seconds: of a pass; x_copying: time per slot against copying's in the same rounds.
        slots, tokens, documents, documents_cut, tokens_lost: of a pass, from the check.
        peak_mib: peak of the process's resident memory; first_batch_s: from the start of a pass.
        figures: of a `Measured` runner.
    """

    runner: type[Runner]
    workload: str
    error: str | None = None
    seconds: float | None = None
    x_copying: float | None = None
    slots: int = 0
    tokens: int = 0
    documents: int = 0
    documents_cut: int = 0
    tokens_lost: int = 0
    peak_mib: float | None = None
    first_batch_s: float | None = None
    figures: dict[str, float] | None = None


@dataclass(frozen=True)
class Reached:
    """A row of the table of targets.

    Attributes:
        target: see `Target`; value: the median over rounds, None where something is missing.
        low, high: over rounds; ours, theirs: the two figures, with units.
    """

    target: Target
    workload: str
    value: float | None
    low: float = 0.0
    high: float = 0.0
    ours: str = ""
    theirs: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if it could not be measured."""
        return None if self.value is None else self.value <= self.target.at_most


def lines_of(job: Job, samples: Sequence[Sample], workload: Workload) -> list[Line]:
    """A line per runner of a job on a workload."""
    return [_line(runner, job, samples, workload) for runner in job.runners]


def reached_of(job: Job, samples: Sequence[Sample], workload: str) -> list[Reached]:
    """The job's targets on a workload."""
    return [_reached(target, samples, workload) for target in job.targets]


def _line(runner: type[Runner], job: Job, samples: Sequence[Sample], workload: Workload) -> Line:
    own = _of(samples, runner, workload.name)
    error = next((s.error for s in own if s.error), None if own else "not run")
    good = [s.found for s in own if s.error is None]
    if not good:
        return Line(runner, workload.name, error)
    if "figures" in good[0]:
        names = good[0]["figures"]
        figures = {n: statistics.median(f["figures"][n] for f in good if n in f["figures"])
                   for n in names}  # fmt: skip
        return Line(runner, workload.name, error, figures=figures)
    counts = good[0]["counts"]
    copying = job.runners[0] if job.runners[0].__name__ == "CopyingThroughMemory" else None
    ratios = _ratios(samples, workload.name, runner, copying, "slot") if copying else []
    moves = bool(counts["tokens"]) and not runner.__name__.startswith("Copying")
    return Line(
        runner,
        workload.name,
        error,
        seconds=_median(good, "seconds"),
        x_copying=statistics.median(ratios) if ratios else None,
        tokens_lost=workload.num_tokens - counts["tokens"] if moves and copying else 0,
        peak_mib=_median(good, "peak_mib"),
        first_batch_s=_median(good, "first_batch_s"),
        **{name: counts[name] for name in ("slots", "tokens", "documents", "documents_cut")},
    )


def _reached(target: Target, samples: Sequence[Sample], workload: str) -> Reached:
    if target.figure is not None:
        values = [
            s.found["figures"][target.figure]
            for s in _of(samples, target.runner, workload)
            if s.error is None
        ]
        return _of_values(target, workload, values)
    assert target.reference is not None
    values = _ratios(samples, workload, target.runner, target.reference, target.basis)
    ours, theirs = (
        _figure(_of(samples, runner, workload), target.basis)
        for runner in (target.runner, target.reference)
    )
    return _of_values(target, workload, values, ours, theirs)


def _of_values(
    target: Target, workload: str, values: list[float], ours: str = "", theirs: str = ""
) -> Reached:
    if not values:
        return Reached(target, workload, None)
    middle = statistics.median(values)
    return Reached(target, workload, middle, min(values), max(values), ours, theirs)


def _ratios(
    samples: Sequence[Sample],
    workload: str,
    runner: type[Runner],
    reference: type[Runner],
    basis: Basis,
) -> list[float]:
    """Ours to theirs in each round that has both."""
    ours, theirs = (
        {s.round: s.found for s in _of(samples, r, workload) if s.error is None}
        for r in (runner, reference)
    )
    if basis == "seconds more":
        return [
            ours[n]["first_batch_s"] - theirs[n]["first_batch_s"]
            for n in sorted(ours)
            if n in theirs
        ]
    if 0 not in ours or 0 not in theirs:
        return []
    per = {"pass": None, "slot": "slots", "document": "documents"}[basis]
    mine, other = (found[0]["counts"][per] if per else 1 for found in (ours, theirs))
    return [
        (ours[n]["seconds"] / mine) / (theirs[n]["seconds"] / other)
        for n in sorted(ours)
        if n in theirs
    ]


def _figure(samples: list[Sample], basis: Basis) -> str:
    """A runner's own figure in words."""
    good = [s.found for s in samples if s.error is None]
    if not good:
        return "-"
    seconds = _median(good, "seconds")
    counts = good[0].get("counts", {})
    if basis == "slot":
        return f"{counts['slots'] / seconds / 1e6:.3g} M slots/s"
    if basis == "document":
        return f"{seconds / counts['documents'] * 1e6:.2f} us/document"
    if basis == "seconds more":
        return f"{_median(good, 'first_batch_s'):.2f} s"
    return f"{seconds * 1000:.3g} ms"


def _of(samples: Sequence[Sample], runner: type[Runner], workload: str) -> list[Sample]:
    return [s for s in samples if s.runner == runner.__name__ and s.workload == workload]


def _median(found: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(f[name] for f in found))
