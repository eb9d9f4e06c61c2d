"""Medians over rounds, ratios to the runner that is compared with, and tables in Markdown."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.jobs import JOBS, Job
from benchmarks.protocol import Runner, Timed

__all__ = [
    *("PRINTED", "library_versions", "load_before", "machine", "markdown", "markdown_table"),
    *("print_table", "put_between", "ratios"),
]

LIBRARIES = (
    "datasets", "grain", "lightbinpack", "litdata", "megatron-energon", "mosaicml-streaming",
    "numba", "numpy", "pyarrow", "tokenizers", "torch", "trl", "webdataset",
)  # fmt: skip

#: Tables that this process printed: title, head, rows. `benchmarks.records` keeps them.
PRINTED: list[dict[str, Any]] = []


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one, with a title."""
    cells = [[str(cell) for cell in row] for row in rows]
    PRINTED.append({"title": title, "head": list(head), "rows": cells})
    print(f"\n{title}\n\n{markdown_table(head, rows)}", flush=True)


def put_between(page: Path, name: str, text: str) -> None:
    """Replace the text between `<!-- name: begin -->` and `<!-- name: end -->`."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, rest = page.read_text().split(begin)
    _, tail = rest.split(end)
    page.write_text(f"{head}{begin}\n{text.strip()}\n\n{end}{tail}")


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
    """Return the machine's load by other programs; call it before anything is measured."""
    return f"load {os.getloadavg()[0]:.1f} before it began" if hasattr(os, "getloadavg") else ""


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that are imported here, by name."""
    return {
        name: metadata.version(name)
        for name in LIBRARIES
        if name.removeprefix("mosaicml-").replace("-", ".") in sys.modules
    }


def markdown(results: dict[str, Any]) -> str:
    """A section per job, then the settings of peers and the machines."""
    jobs = [job for job in JOBS if job.name in results]
    parts = []
    for job in jobs:
        table = _table(job, results[job.name]["samples"])
        parts.append("\n\n".join(filter(None, [f"### {job.title}", job.caption, table])))
    return "\n\n".join([*parts, _peers(jobs), _machines(results)]) + "\n"


def _table(job: Job, samples: list[dict[str, Any]]) -> str:
    good = [sample for sample in samples if "found" in sample]
    errors = {r.label: s["error"] for r in job.runners for s in _of(samples, r) if "error" in s}
    if any("figures" in sample["found"] for sample in good):
        text = _figures(job, [sample["found"]["figures"] for sample in good])
    else:
        text = _times(job, good)
    return "\n\n".join([text, *(f"{label}: {error}" for label, error in errors.items())])


def _figures(job: Job, found: list[dict[str, dict[str, float]]]) -> str:
    """Medians of all figures that have the same row and column."""
    rows = list(dict.fromkeys(row for figures in found for row in figures))
    head = list(
        dict.fromkeys(name for figures in found for row in figures.values() for name in row)
    )

    def cell(row: str, column: str) -> str:
        values = [figures[row][column] for figures in found if column in figures.get(row, {})]
        return format(statistics.median(values), job.form) if values else ""

    return markdown_table(["", *head], [[row, *(cell(row, name) for name in head)] for row in rows])


def _times(job: Job, samples: list[dict[str, Any]]) -> str:
    several = len(job.workloads) > 1
    rows = []
    for workload in job.workloads:
        own = [sample for sample in samples if sample["workload"] == workload]
        for runner in job.runners:
            found = [sample["found"] for sample in _of(own, runner)]
            if found:
                label = f"{runner.label} ({workload})" if several else runner.label
                cells = _cells(found, ratios(job, own, runner), job)
                rows.append([label, *(cells[name] for name in job.columns)])
    return markdown_table(["", *job.columns], rows)


def _cells(found: list[dict[str, Any]], compared: list[float], job: Job) -> dict[str, str]:
    middle = {
        name: statistics.median(one[name] for one in found)
        for name in ("seconds", "processor_s", "first_batch_s", "peak_mib")
        if name in found[0]  # older samples have no processor time
    }
    counts = found[0]["counts"]
    return {
        "ms": _number(1000 * middle["seconds"]),
        "M tokens/s": _number(counts["tokens"] / middle["seconds"] / 1e6),
        "M tokens/s of a core": _number(counts["tokens"] / middle[job.clock] / 1e6),
        job.compared: f"{statistics.median(compared):.3g}" if compared else "",
        "rows used": f"{100 * counts['tokens'] / counts['slots']:.2f} %" if counts["slots"] else "",
        "tokens lost": f"{counts['lost']:,}" if counts["documents"] else "",
        "documents cut": f"{counts['documents_cut']:,}" if counts["documents"] else "",
        "peak MiB": f"{middle['peak_mib']:.0f}",
        "first batch, ms": _number(1000 * middle["first_batch_s"]),
    }


def ratios(job: Job, samples: list[dict[str, Any]], runner: type[Runner]) -> list[float]:
    """Return time per token over the reference runner's, in each round that has both."""
    assert issubclass(runner, Timed)
    other = runner.reference or job.runners[0].__name__
    ours = {sample["round"]: sample["found"] for sample in _of(samples, runner)}
    theirs = {s["round"]: s["found"] for s in samples if s["runner"] == other}
    if 0 not in ours or 0 not in theirs or not ours[0]["counts"]["tokens"]:
        return []
    mine, its = (found[0]["counts"]["tokens"] for found in (ours, theirs))
    return [
        (ours[n][job.clock] / mine) / (theirs[n][job.clock] / its)
        for n in sorted(ours.keys() & theirs.keys())
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _of(samples: list[dict[str, Any]], runner: type[Runner]) -> list[dict[str, Any]]:
    return [sample for sample in samples if sample["runner"] == runner.__name__]


def _peers(jobs: Sequence[Job]) -> str:
    peers = {
        (runner.settings, runner.delivers): runner.label.split(", plan")[0]
        for job in jobs
        for runner in reversed(job.runners)
        if runner.settings and not runner.label.startswith("streampack")
    }
    rows = [[label, *details] for details, label in peers.items()]
    table = markdown_table(["peer", "settings", "a batch is done with"], rows)
    return f"### Settings of peers\n\n{table}"


def _machines(results: dict[str, Any]) -> str:
    jobs: dict[str, list[str]] = {}
    versions: dict[str, set[str]] = {}
    for name, found in results.items():
        jobs.setdefault(f"{found['machine']}; {found['load']}", []).append(name)
        for library, version in found["versions"].items():
            versions.setdefault(library, set()).update(version.split("/"))
    lines = [f"- {', '.join(names)}: {where}" for where, names in jobs.items()]
    found = ", ".join(f"{k} {'/'.join(sorted(v))}" for k, v in sorted(versions.items()))
    return "\n".join(["### Machines and versions\n", *lines, f"- {found}"])
