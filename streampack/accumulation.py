"""BatchGroup: the batches of one optimiser step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streampack.batch import PackedBatch

__all__ = ["BatchGroup"]


class BatchGroup:
    """Batches whose gradients are added up before the optimiser steps.

    Attributes:
        batches: this rank's, in order; fewer than asked for at the end of a run.
        num_loss_tokens: labels that count in the loss, over these batches on all data-parallel
            ranks together.
    """

    def __init__(self, batches: Sequence[PackedBatch], num_loss_tokens: int) -> None:
        self.batches = tuple(batches)
        self.num_loss_tokens = num_loss_tokens
        for batch in batches:
            batch.num_items_in_batch = num_loss_tokens

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[PackedBatch]:
        return iter(self.batches)

    def __repr__(self) -> str:
        return f"BatchGroup(batches={len(self)}, num_loss_tokens={self.num_loss_tokens})"
