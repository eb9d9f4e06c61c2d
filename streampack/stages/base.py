"""Block stages: what happens to a block between its source and the window, one after the other.

A run has a list of stages for every source of it, put together once, where the dataset is built:
`passed_through` passes a block through them. A capability adds a stage, and nothing here changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from streampack.documents.blocks import Documents

if TYPE_CHECKING:
    import numpy as np

    from streampack.sources.base import Block, Source
    from streampack.sources.skips import Skips


class Place(NamedTuple):
    """Where a block is: its source and the number of that in a mixture, the run's seed, the epoch.

    Attributes:
        skips: what to do with broken content.
    """

    source: Source
    number: int
    seed: int
    epoch: int
    skips: Skips

    def name(self, origin: np.void) -> str:
        """A document in words."""
        of = f' of source "{self.skips.name}"' if self.skips.name else ""
        return self.source.document_name(origin) + of


class BlockStage(Protocol):
    """One thing that happens to a block; picklable, without state.

    It must do to a document what it does to it in any other block, or resuming would differ.
    """

    def __call__(self, block: Any, place: Place, /) -> Any:
        """Return the block after it; raise, or pass documents to `place.skips` and drop them."""

    def describe(self) -> Mapping[str, Any]:
        """JSON-able: what of it decides the batches, by the fields of a fingerprint."""


def passed_through(stages: Sequence[BlockStage], block: Block, place: Place) -> Documents:
    """A block after all stages."""
    for stage in stages:
        block = stage(block, place)
    assert isinstance(block, Documents)
    return block
