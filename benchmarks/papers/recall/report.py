"""The tables of the recall experiment, from its results."""

from __future__ import annotations

from benchmarks.papers.recall.results import Results

__all__ = ["report"]


def report(results: Results) -> None:
    """Print every table as Markdown."""
    print(f"{len(results.runs)} runs")
