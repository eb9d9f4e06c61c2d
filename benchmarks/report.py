"""The tables of a run, in markdown."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.harness import Sample
from benchmarks.jobs import JOBS, Job
from benchmarks.protocol import Runner
from benchmarks.summary import Line, Reached, lines_of, reached_of
from benchmarks.workloads import Workload

__all__ = ["as_json", "library_versions", "load_before", "machine", "markdown", "versions"]

LIBRARIES = (
    "datasets", "grain", "lightbinpack", "litdata", "megatron-energon", "mosaicml-streaming",
    "numba", "numpy", "pyarrow", "tokenizers", "torch", "trl", "webdataset",
)  # fmt: skip

_HEAD = (
    "runner", "M tokens/s", "documents/s", "x copying", "utilisation", "tokens lost",
    "documents cut", "peak MiB", "first batch",
)  # fmt: skip


def machine() -> str:
    """The machine in words, without its name."""
    model = platform.machine()
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        names = [line for line in cpu.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    word = {1: "one core", 2: "two cores", 4: "four cores"}.get(cores or 0, f"{cores} cores")
    return f"{word} of {model}, {platform.system()}, Python {platform.python_version()}"


def load_before() -> str:
    """How busy the machine is with other things; to be asked before anything is measured."""
    if not hasattr(os, "getloadavg"):
        return ""
    return f"load {os.getloadavg()[0]:.1f} before it began"


def library_versions() -> dict[str, str]:
    """Of the libraries that are imported here, by name."""
    return {
        name: metadata.version(name)
        for name in LIBRARIES
        if name.removeprefix("mosaicml-").replace("-", ".") in sys.modules
    }


def versions(samples: Sequence[Sample]) -> dict[str, str]:
    """Of every library used, by name; several where environments differ."""
    found: dict[str, set[str]] = {}
    for sample in samples:
        for name, version in sample.found.get("versions", {}).items():
            found.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(some)) for name, some in sorted(found.items())}


def markdown(
    samples: Sequence[Sample], workloads: dict[str, Workload], command: str, load: str
) -> str:
    """Everything: targets first, then a table per job, then settings."""
    jobs = [job for job in JOBS if any(s.job == job.name for s in samples)]
    parts = [
        f"`{command}` on {machine()}; {load}.",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in versions(samples).items()) + ".",
        _targets(jobs, samples),
    ]
    for job in jobs:
        own = [s for s in samples if s.job == job.name]
        for name in job.workloads:
            parts += [_table(job, lines_of(job, own, workloads[name]), workloads[name])]
    parts.append(_settings(jobs))
    return "\n\n".join(parts) + "\n"


def _targets(jobs: Sequence[Job], samples: Sequence[Sample]) -> str:
    rows = ["| job / reference | target | reached | rounds | ours | the reference's figure |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    for job in jobs:
        own = [s for s in samples if s.job == job.name]
        for name in job.workloads:
            rows += [_target_row(r, len(job.workloads) > 1) for r in reached_of(job, own, name)]
    return "### Targets\n\n" + "\n".join(rows)


def _target_row(reached: Reached, several: bool) -> str:
    target = reached.target
    what = f"{target.what} ({reached.workload})" if several else target.what
    if reached.value is None:
        return f"| {what} | {target.at_most:g} | not measured | | | |"
    mark = "**" if reached.met else ""
    return (
        f"| {what} | {target.at_most:g} | {mark}{reached.value:.3g}{mark} | "
        f"{reached.low:.3g} to {reached.high:.3g} | {reached.ours} | {reached.theirs} |"
    )


def _table(job: Job, lines: Sequence[Line], workload: Workload) -> str:
    title = f"### {job.title}"
    if len(job.workloads) > 1:
        title += f": {workload.name}"
    measured = [line for line in lines if line.figures]
    if measured:
        rows = [f"| {line.runner.label} | {_figures(line.figures or {})} |" for line in measured]
        return "\n".join(
            [f"{title}\n", "| runner | figures |", "|---|---|", *rows, *_missing(lines)]
        )
    head = [f"{title}\n", "| " + " | ".join(_HEAD) + " |", "|---" * len(_HEAD) + "|"]
    return "\n".join([*head, *(_row(line) for line in lines if line.seconds), *_missing(lines)])


def _missing(lines: Sequence[Line]) -> list[str]:
    return [f"\n{line.runner.label}: {line.error}" for line in lines if line.error]


def _figures(figures: dict[str, float]) -> str:
    return "; ".join(f"{name}: {value:,.4g}" for name, value in figures.items())


def _row(line: Line) -> str:
    seconds = line.seconds or 0.0
    copying = line.runner.__name__.startswith("Copying")
    cells = [
        line.runner.label,
        _number(line.tokens / seconds / 1e6) if line.tokens else "",
        _number(line.documents / seconds) if line.documents else "",
        f"{line.x_copying:.2f}" if line.x_copying else "",
        f"{100 * line.tokens / line.slots:.2f} %" if line.documents and line.slots else "",
        "" if copying or not line.tokens else f"{line.tokens_lost:,}",
        "" if copying or not line.documents else f"{line.documents_cut:,}",
        f"{line.peak_mib:.0f}",
        "" if copying else f"{1000 * (line.first_batch_s or 0):,.3g} ms",
    ]
    return "| " + " | ".join(cells) + " |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _settings(jobs: Sequence[Job]) -> str:
    seen: dict[str, type[Runner]] = {r.label: r for job in jobs for r in job.runners}
    labels: dict[tuple[str, str], list[str]] = {}  # of the runners with the same settings
    for label, runner in seen.items():
        labels.setdefault((runner.settings, runner.delivers), []).append(label)
    lines = [
        f"- {'; '.join(same)}: {settings}" + (f". Done when: {delivers}." if delivers else ".")
        for (settings, delivers), same in labels.items()
    ]
    return "### Settings\n\n" + "\n".join(lines)


def as_json(
    samples: Sequence[Sample], workloads: dict[str, Workload], command: str, load: str
) -> dict[str, Any]:
    """Everything again, for programs."""
    return {
        "command": command,
        "machine": machine(),
        "load": load,
        "versions": versions(samples),
        "workloads": {
            name: {"documents": len(w.lengths), "tokens": w.num_tokens, "seed": w.seed}
            for name, w in workloads.items()
        },
        "targets": [
            {
                "target": r.target.what,
                "workload": r.workload,
                "at_most": r.target.at_most,
                "reached": r.value,
                "low": r.low,
                "high": r.high,
            }
            for job in JOBS
            for name in job.workloads
            for r in reached_of(job, [s for s in samples if s.job == job.name], name)
            if name in workloads
        ],
        "samples": [{k: v for k, v in vars(s).items() if v is not None} for s in samples],
    }
