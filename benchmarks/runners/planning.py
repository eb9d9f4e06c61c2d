"""Planning alone: lengths in, rows out, no tokens moved.

Documents longer than a row are cut to a row beforehand, since lightbinpack refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from benchmarks.protocol import SEQ_LEN, Counts, Timed, WrongOutputError

__all__ = ["PLANNERS", "LightbinpackPlan", "StreampackPlan"]


class Planning(Timed):
    """So many lengths of the workload's distribution."""

    documents: ClassVar[int]

    def prepare(self) -> None:
        """Draw lengths from the workload's."""
        rng = np.random.default_rng(1)
        lengths = rng.choice(self.workload.lengths, self.documents)
        self.lengths = np.minimum(lengths, SEQ_LEN)

    def counts_of(self, rows: list[list[int]]) -> Counts:
        """Check rows of document numbers: each once, none too long."""
        placed = np.sort(np.concatenate([np.asarray(row) for row in rows]))
        fill = np.array([self.lengths[row].sum() for row in rows])
        if not np.array_equal(placed, np.arange(self.documents)) or fill.max() > SEQ_LEN:
            raise WrongOutputError(f"{self.label}: a document is missing, or a row too long.")
        return Counts(len(rows) * SEQ_LEN, int(fill.sum()), self.documents)


class StreampackPlan(Planning):
    """`BestFitDecreasing.plan`."""

    settings = "BestFitDecreasing(seq_len=2048).plan; lengths as an int64 array"
    delivers = "a Plan (arrays)"

    def batches(self) -> Iterator[Any]:
        """One plan."""
        from streampack.packing import BestFitDecreasing

        yield BestFitDecreasing(seq_len=SEQ_LEN).plan(self.lengths, final=True, seed=0)

    def check(self) -> Counts:
        """Against the library's oracle and ours."""
        from streampack.packing import check_plan

        (plan,) = self.batches()
        check_plan(plan, self.lengths)
        rows = np.split(plan.document, plan.row_offsets[1:-1])
        return self.counts_of([row.tolist() for row in rows])


class LightbinpackPlan(Planning):
    """lightbinpack's `obfd`, optimised best-fit decreasing in C++."""

    environment = "lightbinpack"
    # The parallel obfdp is slower on two cores, an array of lengths slower than a list.
    settings = "obfd(lengths, 2048), lengths as a Python list made beforehand"
    delivers = "a list of lists of document numbers"

    def prepare(self) -> None:
        """Lengths as a list."""
        super().prepare()
        self.listed = self.lengths.tolist()

    def batches(self) -> Iterator[Any]:
        """One plan."""
        import lightbinpack

        yield lightbinpack.obfd(self.listed, SEQ_LEN)

    def check(self) -> Counts:
        """Each document once."""
        (rows,) = self.batches()
        return self.counts_of(rows)


def _sized(base: type[Planning], library: str, documents: int) -> type[Planning]:
    name = f"{base.__name__}{documents}"
    label = f"{library}, plan of {documents:,} lengths"
    more = {"documents": documents, "label": label, "reference": f"LightbinpackPlan{documents}"}
    return type(name, (base,), {**more, "__doc__": base.__doc__})


#: (ours, theirs) per number of documents.
PLANNERS = {
    n: (_sized(StreampackPlan, "streampack", n), _sized(LightbinpackPlan, "lightbinpack", n))
    for n in (1_000, 10_000, 100_000)
}
