"""The tables of the training experiment, from its results."""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks.papers.seamless import table
from streampack.packing import Composition

__all__ = ["Runs", "mean_and_error", "report"]

BASE = "Concat 1 x"
ATTENTIONS = ("document", "row")
POINTS = ("equal tokens", "equal steps")
_Run = dict[str, Any]


class Runs:
    """Runs by arm, attention and seed; what is one run with either attention stands in both."""

    def __init__(self, runs: list[_Run]) -> None:
        self._runs = {(run["arm"], run["attention"], run["seed"]): run for run in runs}
        self.arms = list(dict.fromkeys(run["arm"] for run in runs))
        self.seeds = sorted({run["seed"] for run in runs})

    def over_seeds(self, arm: str, attention: str) -> dict[int, _Run]:
        """The arm's run of each seed that it has been run with."""
        found = {}
        for seed in self.seeds:
            either = self._runs.get((arm, "either", seed))
            run = self._runs.get((arm, attention, seed), either)
            if run is not None:
                found[seed] = run
        return found

    def cell(self, values: list[float], form: str) -> str:
        """Mean ± standard error, and how many seeds where some have not been run."""
        if not values:
            return "not run"
        mean, error = mean_and_error(values)
        text = format(mean, form)
        if len(values) > 1:
            text += f" ± {format(error, form.lstrip('+'))}"
        if len(values) < len(self.seeds):
            text += f" ({len(values)} of {len(self.seeds)} seeds)"
        return text


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean, and its standard error (sample standard deviation over the root of the count)."""
    if len(values) < 2:
        return statistics.fmean(values), math.nan
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def perplexities(runs: Runs, field: str, title: str, points: tuple[str, ...]) -> None:
    """Mean and standard error of a perplexity, arms by attention and point."""
    columns = [(attention, point) for attention in ATTENTIONS for point in points]
    lines = []
    for arm in runs.arms:
        line = [arm]
        for attention, point in columns:
            found = runs.over_seeds(arm, attention).values()
            line.append(runs.cell([math.exp(run["points"][point][field]) for run in found], ".2f"))
        lines.append(line)
    table(title, ["", *(f"{attention}, {point}" for attention, point in columns)], lines)


def differences(runs: Runs) -> None:
    """Validation perplexity over that of the base with the same attention and seed."""
    columns = [(attention, point) for attention in ATTENTIONS for point in POINTS]
    lines = []
    for arm in runs.arms:
        line = [arm]
        for attention, point in columns:
            bases = runs.over_seeds(BASE, attention)
            values = [
                100 * math.expm1(run["points"][point]["alone"] - base["points"][point]["alone"])
                for seed, run in runs.over_seeds(arm, attention).items()
                if (base := bases.get(seed)) is not None
            ]
            line.append(runs.cell(values, "+.1f"))
        if arm != BASE:
            lines.append(line)
    table(
        f"Validation perplexity, documents alone: % above {BASE} of the same attention and seed",
        ["", *(f"{attention}, {point}" for attention, point in columns)],
        lines,
    )


def compositions(runs: Runs) -> None:
    """What the rows were made of, over all steps and seeds, and the steps to equal tokens."""
    lines = []
    for arm in runs.arms:
        total = Composition()
        steps = []
        for run in runs.over_seeds(arm, "document").values():
            total += Composition(**run["composition"])
            steps.append(run["points"]["equal tokens"]["step"])
        lines.append([
            arm,
            f"{total.padding_ratio:.1%}",
            f"{total.inserted_eos / total.slots:.1%}",
            f"{total.truncation_ratio:.1%}",
            f"{total.repetition_ratio:.1%}",
            f"{total.dropped_ratio:.1%}",
            f"{total.mean_context:.0f}",
            f"{statistics.fmean(steps):.0f}",
        ])  # fmt: skip
    table(
        "What rows were made of",
        ["", "padding", "inserted EOS", "documents cut", "repeated", "dropped",
         "context of a token, tokens", "steps to equal tokens"],
        lines,
    )  # fmt: skip


def report(results: dict[str, Any]) -> None:
    """Print every table as Markdown."""
    preset, corpus = results["preset"], results["corpus"]
    runs = Runs(results["runs"])
    for part in ("train", "validation"):
        told = corpus[part]
        print(
            f"{part}: {told['documents']:,} documents ({preset['unit']}s), {told['tokens']:,} "
            f"tokens, {told['mean']:.0f} on average, median {told['p50']:.0f}, 90 % below "
            f"{told['p90']:.0f}, longest {told['longest']:,}; {told['documents within a row']:.0%} "
            f"within {preset['seq_len']} tokens, which hold {told['tokens of those']:.0%} of the "
            "tokens"
        )
    print(
        f"\n{len(results['runs'])} runs, seeds {', '.join(map(str, runs.seeds))}, "
        f"{sum(run['seconds'] for run in results['runs']) / 60:.0f} minutes; equal tokens: "
        f"{preset['tokens']:,}; equal steps: {preset['steps']:,} of {preset['rows']} x "
        f"{preset['seq_len']} slots. Mean ± standard error over the seeds."
    )
    compositions(runs)
    perplexities(runs, "alone", "Validation perplexity, documents alone", POINTS)
    differences(runs)
    perplexities(runs, "training", "Training perplexity, last tenth of the steps", POINTS)
    perplexities(
        runs, "joined", "Validation perplexity, documents joined in rows", ("equal steps",)
    )
