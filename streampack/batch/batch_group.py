"""BatchGroup: the batches of one optimiser step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic

from streampack.batch.packed_batch import PackedBatch

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: Item that a loop gets for each batch: the batch, or the result of the loader's `transform`.
    Item = TypeVar("Item", default=PackedBatch)
else:
    from typing import TypeVar

    Item = TypeVar("Item")  # `typing.TypeVar` has no defaults before Python 3.13


class BatchGroup(Generic[Item]):
    """The batches of one optimiser step, over which gradients are added.

    Attributes:
        batches: this rank's batches in order, after the loader's `transform`; the last group of a
            run may have fewer.
        num_loss_tokens: labels that count in the loss, over these batches on all data-parallel
            ranks. The losses are already divided by it (`PackedBatch.num_items_in_batch`).
    """

    def __init__(
        self,
        batches: Sequence[PackedBatch],
        num_loss_tokens: int,
        form: Callable[[PackedBatch], Item],
    ) -> None:
        self.num_loss_tokens = num_loss_tokens
        self.batches: tuple[Item, ...] = tuple(form(batch) for batch in batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.batches)

    def __repr__(self) -> str:
        return f"BatchGroup(batches={len(self)}, num_loss_tokens={self.num_loss_tokens})"
