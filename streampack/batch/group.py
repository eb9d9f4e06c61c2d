"""BatchGroup: the batches of one optimiser step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from streampack.batch.packed_batch import PackedBatch


class BatchGroup:
    """Batches whose gradients are added up before the optimiser steps.

    Attributes:
        batches: this rank's, in order, as the loader's `transform` makes them; fewer than asked for
            at the end of a run.
        num_loss_tokens: labels that count in the loss, over these batches on all data-parallel
            ranks together. The losses divide by it already (`PackedBatch.num_items_in_batch`).
    """

    def __init__(
        self,
        batches: Sequence[PackedBatch],
        num_loss_tokens: int,
        form: Callable[[PackedBatch], Any] = lambda batch: batch,
    ) -> None:
        self.num_loss_tokens = num_loss_tokens
        self.batches: tuple[Any, ...] = tuple(form(batch) for batch in batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __repr__(self) -> str:
        return f"BatchGroup(batches={len(self)}, num_loss_tokens={self.num_loss_tokens})"
