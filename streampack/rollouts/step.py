"""Step: the micro-batches of one training step on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.batch import PackedBatch
from streampack.in_memory.microbatches import MicrobatchPlan
from streampack.in_memory.pack import pack
from streampack.rollouts.answer import AGE, SERIAL, Answer, columns_of
from streampack.rollouts.schedule import Group


@dataclass(slots=True, eq=False)
class Step:
    """A training step: iterate it for this rank's micro-batches, any number of times.

    Attributes:
        index: index of the step in the run.
        plan: the plan of all ranks' micro-batches.
        serials: (G,) int64 serials of the prompts of the step's groups.
        ages: (G,) int64 ages of the groups, in steps.
        num_loss_tokens: tokens that carry loss, over all ranks.
        answers: the answers of this rank, by their index in the plan.
        values: further fields of these answers, by name.
        rank: index of this rank.
        settings: arguments of `MicrobatchPlan.batches`.
        send_s: seconds in which the first process sent the step to the ranks; 0 without others.
        on_last: called with `index` when the last micro-batch is handed out.
    """

    index: int
    plan: MicrobatchPlan
    serials: NDArray[np.int64]
    ages: NDArray[np.int64]
    num_loss_tokens: int
    answers: Mapping[int, Answer]
    values: Mapping[str, Mapping[int, int]]
    rank: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    send_s: float = 0.0
    on_last: Callable[[int], None] | None = None

    def __len__(self) -> int:
        """Return the number of micro-batches, the same on all ranks."""
        return self.plan.microbatches

    def __iter__(self) -> Iterator[PackedBatch]:
        columns = columns_of(self.answers)
        columns["document_fields"] |= self.values
        batches = self.plan.batches(rank=self.rank, **columns, **self.settings)
        for number, batch in enumerate(batches):
            if number == len(self) - 1 and self.on_last is not None:
                self.on_last(self.index)
            yield batch

    def __str__(self) -> str:
        plan, costs = self.plan, self.plan.costs.sum(axis=1)
        return (
            f"step {self.index}: {len(self.serials)} groups, {len(plan.lengths)} sequences, "
            f"{int(plan.lengths.sum()):,} tokens in {plan.ranks} x {len(self)} micro-batches of "
            f"{plan.seq_len:,} slots; padding {plan.padding_ratio:.1%}, costliest rank "
            f"{costs.max() / costs.mean():.3f} times the mean; ages {self.ages.min()} to "
            f"{self.ages.max()}" + (f"; sent in {self.send_s:.2f} s" if self.send_s else "")
        )


def steps_of_ranks(
    index: int, groups: Sequence[Group], *, ranks: int, layout: str, options: Mapping[str, Any]
) -> list[Step]:
    """Plan a step; return each rank's part, with the answers of that rank alone.

    Args:
        index: index of the step.
        groups: finished groups.
        ranks: number of data-parallel ranks.
        layout: see `pack`.
        options: further arguments of `pack`.

    Raises:
        PlanError: a sequence, or a tree, is longer than a row.
    """
    answers: list[Answer] = [answer for group in groups for answer in group.answers]
    sizes = [len(group.answers) for group in groups]
    serials = np.array([group.serial for group in groups], dtype=np.int64)
    ages = np.array([index - group.born for group in groups], dtype=np.int64)
    tree: dict[str, Any] = {}
    if layout == "tree":
        ids = [answer.ids for answer in answers]
        tree = {"layout": layout, "ids": ids, "groups": np.repeat(serials, sizes)}
    lengths = [len(answer.ids) for answer in answers]
    plan = pack(lengths, ranks=ranks, **tree, **options)
    loss_tokens = sum(answer.num_loss_tokens for answer in answers)
    steps = []
    for rank in range(ranks):
        numbers = plan.documents(rank).tolist()
        values = {
            name: dict(zip(numbers, np.repeat(column, sizes)[numbers], strict=True))
            for name, column in ((SERIAL, serials), (AGE, ages))
        }
        part = {i: answers[i] for i in numbers}
        steps.append(Step(index, plan, serials, ages, loss_tokens, part, values, rank))
    return steps
