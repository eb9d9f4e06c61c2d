"""Step: the micro-batches of one training step on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.batch import PackedBatch
from streampack.documents.blocks import offsets_of
from streampack.in_memory.microbatches import MicrobatchPlan
from streampack.in_memory.pack import pack
from streampack.rollouts.answer import AGE, SERIAL, Answer, Ragged, columns_of, sequences_of
from streampack.rollouts.schedule import Group


@dataclass(slots=True, eq=False)
class Step:
    """A training step: iterate it for this rank's micro-batches, any number of times.

    Attributes:
        index: index of the step in the run.
        plan: the plan of all ranks' micro-batches.
        serials: (G,) int64 serials of the prompts of the step's groups.
        ages: (G,) int64 ages of the groups, in steps.
        loss_tokens: (M,) int64 tokens that carry loss in each micro-batch, over all ranks.
        answers: the answers of this rank, by their index in the plan; if it has none, another one,
            for the fields of its empty micro-batches.
        values: further fields of these answers, by name.
        rank: index of this rank.
        settings: arguments of `MicrobatchPlan.batches`.
        send_s: seconds in which the first process sent the step to the ranks; 0 without others.
        passes: passes over the micro-batches until the step counts as trained.
        on_last: called with `index` when the last micro-batch of these is handed out.
    """

    index: int
    plan: MicrobatchPlan
    serials: NDArray[np.int64]
    ages: NDArray[np.int64]
    loss_tokens: NDArray[np.int64]
    answers: Mapping[int, Answer]
    values: Mapping[str, Mapping[int, int]]
    rank: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    send_s: float = 0.0
    passes: int = 1
    on_last: Callable[[int], None] | None = None

    def __len__(self) -> int:
        """Return the number of micro-batches, the same on all ranks."""
        return self.plan.microbatches

    def __iter__(self) -> Iterator[PackedBatch]:
        columns = columns_of(self.answers, with_images=self.settings.get("processor") is not None)
        columns["document_fields"] |= self.values
        batches = self.plan.batches(rank=self.rank, **columns, **self.settings)
        for number, batch in enumerate(batches):
            if number == len(self) - 1 and self.on_last is not None:
                self.passes -= 1
                if self.passes <= 0:
                    self.on_last(self.index)
            yield batch

    @property
    def num_loss_tokens(self) -> int:
        """Number of tokens that carry loss, over all ranks."""
        return int(self.loss_tokens.sum())

    def parts(self, count: int) -> Iterator[tuple[int, Iterator[PackedBatch]]]:
        """Divide a pass into parts, for an optimizer step after each; the same on all ranks.

        Args:
            count: number of parts, at most one for each micro-batch.

        Yields:
            A part's tokens that carry loss, over all ranks, and its micro-batches.
        """
        batches = iter(self)
        for part in np.array_split(self.loss_tokens, min(count, len(self))):
            yield int(part.sum()), islice(batches, len(part))

    def ragged(self, batch: PackedBatch) -> dict[str, Ragged]:
        """Return the sets per token of a micro-batch of this step, as tensors on its device.

        They are in the order of ``batch.input_ids.ravel()``, with empty sets on padding; in trees
        in that of ``batch.slot``, the tokens of the sequences.
        """
        import torch

        numbers = self.plan.documents(self.rank, batch.step)
        lengths = self.plan.lengths[numbers]
        tree = hasattr(batch, "slot")
        taken = lengths if tree else -(-lengths // self.plan.align) * self.plan.align
        begins = np.append(0, np.cumsum(taken))
        count = int(begins[-1]) if tree else batch.input_ids.numel()
        result = {}
        first = next(iter(self.answers.values()), None)
        for name, of_first in first.ragged_fields.items() if first else ():
            sets = [self.answers[number].ragged_fields[name] for number in numbers.tolist()]
            sizes = np.zeros(count, dtype=np.int64)
            for begin, each in zip(begins.tolist(), sets, strict=False):
                sizes[begin : begin + len(each.offsets) - 1] = np.diff(each.offsets)
            values = np.concatenate([of_first.values[:0], *(each.values for each in sets)])
            tensors = (torch.from_numpy(array) for array in (offsets_of(sizes), values))
            result[name] = Ragged(*(tensor.to(batch.input_ids.device) for tensor in tensors))
        return result

    def show(self) -> str:
        """Return the step as text: a summary, and a line for each micro-batch of each rank."""
        plan, costs, lines = self.plan, self.plan.costs, [str(self)]
        for rank, number in np.ndindex(costs.shape):
            lengths = plan.lengths[plan.documents(rank, number)]
            lines.append(
                f"  rank {rank}, micro-batch {number}: {len(lengths)} sequences of at most "
                f"{lengths.max(initial=0):,} tokens, {plan.tokens[rank, number]:,} slots, cost "
                f"{costs[rank, number] / costs.mean():.3f} of the mean"
            )
        return "\n".join(lines)

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
    sequences = [sequences_of(group.answers) for group in groups]
    answers, sizes = [*chain(*sequences)], [*map(len, sequences)]
    serials = np.array([group.serial for group in groups], dtype=np.int64)
    ages = np.array([index - group.born for group in groups], dtype=np.int64)
    tree: dict[str, Any] = {}
    if layout == "tree":
        ids = [answer.ids for answer in answers]
        tree = {"layout": layout, "ids": ids, "groups": np.repeat(serials, sizes)}
    lengths = [len(answer.ids) for answer in answers]
    plan = pack(lengths, ranks=ranks, **tree, **options)
    learnt = np.array([answer.num_loss_tokens for answer in answers], dtype=np.int64)
    loss_tokens = np.array(
        [
            sum(learnt[plan.documents(rank, number)].sum() for rank in range(ranks))
            for number in range(plan.microbatches)
        ],
        dtype=np.int64,
    )
    steps = []
    for rank in range(ranks):
        numbers = plan.documents(rank).tolist() or [0]
        values = {
            name: dict(zip(numbers, np.repeat(column, sizes)[numbers], strict=True))
            for name, column in ((SERIAL, serials), (AGE, ages))
        }
        part = {i: answers[i] for i in numbers}
        steps.append(Step(index, plan, serials, ages, loss_tokens, part, values, rank))
    return steps
