"""The tables of the recall experiment, from its results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.papers.recall.measures import DISTANCES
from benchmarks.papers.recall.protocol import ARMS, COMPARISONS, planned
from benchmarks.papers.results import Results
from benchmarks.papers.statistics import holm, mean_and_error, paired
from benchmarks.report import markdown_table, print_table

__all__ = ["report", "table"]

_HEAD = ["question", "arms", "measure", "difference", "p", "Holm", "seeds"]
_FACTS = [arm.name for arm in ARMS if arm.corpus == "facts"]
_GROUPS = [arm.name for arm in ARMS if arm.corpus == "groups"]


def report(results: Results) -> None:
    """Print every table as Markdown."""
    seconds = sum(run["cpu_s"] for run in results.runs)
    print(
        f"{len(results.runs)} of {len(planned())} runs, {seconds / 60:.0f} minutes of one core. "
        "Shares in per cent; mean ± standard error over the seeds."
    )
    print_table(
        "Primary comparisons: difference in points with its 95 % interval",
        _HEAD,
        _primary(results),
    )
    low = [1, *(high + 1 for high in DISTANCES)]
    by_distance = [f"{first} to {last}" for first, last in zip(low, DISTANCES, strict=False)]
    _measures(
        results,
        "Right answers, documents alone, by tokens from statement to question; the loss in nats",
        _FACTS,
        {
            "up to 224": "alone",
            **{name: f"alone, {name}" for name in by_distance},
            "loss up to 224": "alone, loss",
        },
    )
    _measures(
        results,
        "The same documents behind an unrelated one in the row, and alone; dates of events",
        _FACTS,
        {
            "right, alone": "same, alone",
            "right, behind": "behind",
            "wrong values, alone": "same, alone, wrong values",
            "wrong values, behind": "behind, wrong values",
            "events cut": "events cut",
            "events kept": "events kept",
        },
    )
    _measures(
        results,
        "Groups: own facts, and facts that only a related document in front states",
        _GROUPS,
        {
            "own, alone": "own, alone",
            "own, behind a related": "own, behind related",
            "own, behind an unrelated": "own, behind unrelated",
            "wrong values there": "own, behind unrelated, wrong values",
            "other's, behind it": "others', behind related",
            "other's, behind an unrelated": "others', behind unrelated",
        },
    )


def _cell(values: Iterable[float], percent: bool = True) -> str:
    """Mean ± standard error, and how many seeds if there is only one."""
    found = list(values)
    if not found:
        return "not run"
    mean, error = mean_and_error(found)
    scale, form = (100, ".2f") if percent else (1, ".3f")
    text = format(scale * mean, form)
    return f"{text} ± {format(scale * error, form)}" if len(found) > 1 else f"{text} (1 seed)"


def _measures(results: Results, title: str, arms: list[str], columns: dict[str, str]) -> None:
    rows = [
        [name]
        + [_cell(results.of(name, key).values(), "loss" not in key) for key in columns.values()]
        for name in arms
    ]
    print_table(title, ["", *columns], rows)


def table(runs: list[dict[str, Any]]) -> str:
    """Return the primary comparisons of runs in Markdown."""
    return markdown_table(_HEAD, _primary(Results(Path(), "", runs)))


def _primary(results: Results) -> list[list[str]]:
    """Differences seed by seed, over the seeds that both arms have."""
    found = []
    for comparison in COMPARISONS:
        ours = results.of(comparison.arm, comparison.measure)
        theirs = results.of(comparison.to, comparison.to_measure or comparison.measure)
        differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        if len(differences) > 1:
            found.append((comparison, len(differences), paired(differences)))
    corrected = holm([each.p for _, _, each in found])
    rows = []
    for (comparison, seeds, each), p in zip(found, corrected, strict=True):
        there = comparison.to_measure or comparison.measure
        second = comparison.to if comparison.to != comparison.arm else "itself"
        what = (
            comparison.measure if there == comparison.measure else f"{comparison.measure}; {there}"
        )
        rows.append([
            comparison.question, f"{comparison.arm} - {second}", what,
            f"{100 * each.mean:+.2f} ± {100 * each.half_width:.2f}",
            _p(each.p), _p(p), str(seeds),
        ])  # fmt: skip
    return rows


def _p(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "< 0.0001"
