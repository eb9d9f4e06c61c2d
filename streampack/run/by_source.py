"""What a rank got of each source of a mixture, beside what the weights ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.metrics import SourceCounts, SourceTotals
from streampack.sources.mixture.source import Mixture


class SourceFigures(NamedTuple):
    """A source of a mixture.

    Attributes:
        name: in the mixture.
        expected: share of the tokens that its weight asks for, 0 to 1; observed: that it had.
        tokens, documents, loss_tokens: delivered; see `Metrics.sources`.
        epochs: whole passes over it that the rank's lanes have read, on average over those that
            gave the rank batches. It counts what was read, not what was delivered: a lane has 0
            until it reads the first document of its second pass, or finds that there is none, and
            documents that it has read may still wait in its window. So it is up to one less than
            `documents` would say, or a window ahead. Lanes know it from their states, so it goes on
            after a resume.
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
        """By name, what `SourceFigures` has; JSON-able."""
        return {row.name: dict(zip(row._fields[1:], row[1:], strict=True)) for row in self}


def source_report(
    mixture: Mixture,
    totals: Mapping[str, SourceCounts],
    passes: Mapping[int, NDArray[np.int64]],
) -> SourceReport:
    """The report; `passes` are of each lane (sources,) the epochs whose part it has read."""
    whole = max(sum(counts.tokens for counts in totals.values()), 1)
    none = np.zeros(len(mixture.sources), dtype=np.int64)
    epochs = np.mean([*passes.values()] or [none], axis=0)
    return SourceReport(
        SourceFigures(
            name,
            own.expected_tokens / whole,
            own.tokens / whole,
            own.tokens,
            own.documents,
            own.loss_tokens,
            finished,
        )
        for name, finished in zip(mixture.sources, epochs.tolist(), strict=True)
        for own in (totals.get(name, SourceCounts()),)
    )


def counted(
    totals: SourceTotals, mixture: Mixture, by_source: NDArray[np.int64], at: int
) -> SourceTotals:
    """The totals with a batch, in another object: threads may be reading these.

    `by_source` is that of `PackedRows`; `at` are the tokens of the run before the batch.
    """
    rates = mixture.shares.rates(at, [True] * len(mixture.sources))
    rows = by_source.tolist()
    each = sum(row[0] for row in rows) / sum(rates)
    made, none = SourceTotals(totals), SourceCounts()
    for name, (tokens, documents, learnt, _), rate in zip(
        mixture.sources, rows, rates, strict=True
    ):
        own = totals.get(name, none)
        made[name] = SourceCounts(
            own[0] + tokens, own[1] + documents, own[2] + learnt, own[3] + each * rate
        )
    return made
