"""The tables of the GPU experiment, from its results."""

from __future__ import annotations

from benchmarks.papers.results import Results
from benchmarks.papers.statistics import holm, mean_and_error, paired
from benchmarks.papers.tables import table
from benchmarks.papers.training.protocol import ARMS, COMPARISONS, Preset, planned
from streampack.packing import Composition

__all__ = ["report"]

_GAINS = (
    "gain from context",
    "gain from 8 examples",
    "price of an unrelated document",
    "gain from a related document",
)


def report(results: Results, preset: Preset) -> None:
    """Print every table as Markdown."""
    print(
        f"{len(results.runs)} of {len(planned(preset))} runs of {preset.tokens:,} tokens, "
        f"{sum(run['seconds'] for run in results.runs) / 60:.0f} minutes. Losses in nats per "
        "token, mean ± standard error over the seeds."
    )
    if not results.runs:
        return
    _primary(results)
    names = list(results.runs[0]["measures"])
    alone = [name for name in names if name.startswith(("alone", "copied"))]
    _measures(results, "Loss of documents alone, by position; of copied identifiers", alone)
    _measures(results, "Gains and prices", list(_GAINS))
    rows = []
    for arm in ARMS:
        total = Composition()
        for run in results.runs:
            if run["arm"] == arm:
                total += Composition(**run["composition"])
        if total.rows:
            rows.append([
                arm, f"{total.padding_ratio:.2%}", f"{total.truncation_ratio:.1%}",
                f"{total.repetition_ratio:.1%}", f"{total.dropped_ratio:.1%}",
                f"{total.concatenation_ratio:.2f}", f"{total.mean_context:.0f}",
            ])  # fmt: skip
    table(
        "What rows were made of",
        ["", "padding", "documents cut", "repeated", "dropped", "documents per row",
         "context of a token, tokens"],
        rows,
    )  # fmt: skip


def _measures(results: Results, title: str, names: list[str]) -> None:
    rows = []
    for arm in ARMS:
        row = [arm]
        for name in names:
            values = list(results.of(arm, name).values())
            if not values:
                row.append("not run")
            else:
                mean, error = mean_and_error(values)
                row.append(f"{mean:.3f}" + (f" ± {error:.3f}" if len(values) > 1 else ""))
        rows.append(row)
    table(title, ["", *names], rows)


def _primary(results: Results) -> None:
    """Differences seed by seed, once there are two seeds."""
    found = []
    for arm, measure, base in COMPARISONS:
        ours, theirs = results.of(arm, measure), results.of(base, measure)
        differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        if len(differences) > 1:
            found.append((f"{arm} - {base}", measure, paired(differences)))
    if found:
        corrected = holm([each.p for *_, each in found])
        table(
            "Primary comparisons: difference with its 95 % interval",
            ["arms", "measure", "difference", "p", "Holm"],
            [
                [arms, measure, f"{each.mean:+.4f} ± {each.half_width:.4f}", f"{each.p:.4f}",
                 f"{p:.4f}"]
                for (arms, measure, each), p in zip(found, corrected, strict=True)
            ],
        )  # fmt: skip
