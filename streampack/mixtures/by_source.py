"""Tokens that a run takes from each source of a mixture, beside the shares by weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.batch import PackedBatch
from streampack.metrics import SourceCounts, SourceTotals
from streampack.mixtures.source import Mixture
from streampack.mixtures.stream import add as add_counts
from streampack.mixtures.token_shares import WeightChange, change_at, changes_of
from streampack.sources.base import Source

if TYPE_CHECKING:
    from streampack.run.rank import RankRun
    from streampack.stages.recipe import Recipe

_PASSES = "passes"  # key of the epochs of each source, (sources,), by lane


class SourceFigures(NamedTuple):
    """Figures of one source of a mixture.

    Attributes:
        name: name in the mixture.
        expected: share of the tokens by its weight, 0 to 1.
        observed: share of the delivered tokens, 0 to 1.
        tokens, documents, loss_tokens: delivered counts; see `Metrics.sources`.
        epochs: whole passes over the source, averaged over the lanes that gave this rank batches.
            The count covers documents read, not documents delivered: a lane counts 0 until it
            reads the first document of its second pass, or finds that there is none, and documents
            that it has read may still wait in its window. So it may be up to one pass behind
            `documents`, or a window ahead. It comes from the states of lanes, and continues after
            a resume.
    """

    name: str
    expected: float
    observed: float
    tokens: int
    documents: int
    loss_tokens: int
    epochs: float


class SourceReport(tuple[SourceFigures, ...]):
    """`SourceFigures` of every source, in the order of the mixture; ``print`` makes a table."""

    def __str__(self) -> str:
        rows = [
            ("source", "expected", "observed", "tokens", "documents", "loss tokens", "epochs read")
        ]
        rows += [
            (
                row.name, f"{row.expected:.2%}", f"{row.observed:.2%}", f"{row.tokens:,}",
                f"{row.documents:,}", f"{row.loss_tokens:,}", f"{row.epochs:.2f}",
            )
            for row in self
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([name.ljust(widths[0]), *map(str.rjust, figures, widths[1:])])
            for name, *figures in rows
        )

    __repr__ = __str__

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the fields of `SourceFigures` by source name; JSON-able."""
        return {row.name: dict(zip(row._fields[1:], row[1:], strict=True)) for row in self}


def source_report(
    source: Source,
    totals: Mapping[str, SourceCounts],
    passes: Mapping[int, NDArray[np.int64]],
) -> SourceReport:
    """Make the report; `passes` maps each lane to the epochs it has read, (sources,).

    The report has no rows unless the source is a mixture.
    """
    if not isinstance(source, Mixture):
        return SourceReport()
    whole = max(sum(counts.tokens for counts in totals.values()), 1)
    none = np.zeros(len(source.sources), dtype=np.int64)
    epochs = np.mean([*passes.values()] or [none], axis=0)
    return SourceReport(
        SourceFigures(
            name,
            counts.expected_tokens / whole,
            counts.tokens / whole,
            counts.tokens,
            counts.documents,
            counts.loss_tokens,
            finished,
        )
        for name, finished in zip(source.sources, epochs.tolist(), strict=True)
        for counts in (totals.get(name, SourceCounts()),)
    )


def by_source(run: RankRun) -> SourceReport:
    """Report the tokens taken from each source of the run's mixture; without one, no rows."""
    passes = run.kept.get(_PASSES, {})
    return source_report(run.plan.config.source, run.metrics.sources, passes)


def count(run: RankRun, batch: PackedBatch) -> None:
    """Count the sources of a batch that the loop takes."""
    plan, metrics = run.plan, run.metrics
    number = batch.step * plan.config.lanes + batch.lane
    slots = number * plan.config.mean_batch_tokens(batch.step)
    at = int(slots * metrics.composition.utilisation)
    change = change_at(changes_of(run.state.beside), number)
    assert batch.by_source is not None
    metrics.sources = counted(metrics.sources, plan.config.source, batch.by_source, at, change)
    run.kept.setdefault(_PASSES, {})[batch.lane] = batch.by_source[:, 3]


def counted(
    totals: SourceTotals,
    mixture: Source,
    by_source: NDArray[np.int64],
    at: int,
    change: WeightChange | None,
) -> SourceTotals:
    """Return new totals that include a batch; other threads may be reading the old object.

    `by_source` comes from `PackedRows`; `at` is the number of tokens of the run before the batch;
    `change` is the change of weights in force by then.
    """
    assert isinstance(mixture, Mixture)
    shares = mixture.shares if change is None else change.shares([*mixture.sources])
    rates = shares.rates(at, [True] * len(mixture.sources))
    rows = by_source.tolist()
    each = sum(row[0] for row in rows) / sum(rates)
    updated, none = SourceTotals(totals), SourceCounts()
    for name, (tokens, documents, learnt, _), rate in zip(
        mixture.sources, rows, rates, strict=True
    ):
        counts = totals.get(name, none)
        updated[name] = SourceCounts(
            counts[0] + tokens, counts[1] + documents, counts[2] + learnt, counts[3] + each * rate
        )
    return updated


def add(recipe: Recipe, value: object) -> None:
    """Let a run of a mixture count the tokens of each source."""
    add_counts(recipe, value)
    recipe.on_take.append(count)
