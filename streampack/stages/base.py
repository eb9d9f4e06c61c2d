"""Block stages: steps applied in order to each block between its source and the window.

A run has a list of stages for each of its sources, assembled once, when the dataset is built.
`passed_through` applies them to a block. A new capability adds a stage and needs no change here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from streampack.documents.blocks import Documents

if TYPE_CHECKING:
    import numpy as np

    from streampack.sources.base import Block, Source
    from streampack.sources.error_policy import ErrorPolicy

#: Value of a leaf requested by a source, and by no argument of the dataset.
ASKED: Any = type("Asked", (), {"__repr__": lambda self: "asked by the source"})()


class Place(NamedTuple):
    """Context of a block: its source and that source's index, the run's seed, and the epoch.

    Attributes:
        skips: policy for broken documents and shards, with their counts.
    """

    source: Source
    number: int
    seed: int
    epoch: int
    skips: ErrorPolicy

    def name(self, origin: np.void) -> str:
        """Name a document for messages."""
        source = f' of source "{self.skips.name}"' if self.skips.name else ""
        return self.source.document_name(origin) + source


class BlockStage(Protocol):
    """A step applied to a block; picklable, without state.

    The result for a document must not depend on the other documents of the block, because a resumed
    run may cut blocks differently.

    A user's stage may declare columns of documents: ``reads`` and ``writes``, tuples of names of
    fields or "loss_mask". They are checked when the dataset is built.
    """

    def __call__(self, block: Any, place: Place, /) -> Any:
        """Return the changed block; raise, or report documents to `place.skips` and drop them."""

    def describe(self) -> Mapping[str, Any]:
        """Return the JSON-able settings that affect batches, as fields of a fingerprint."""


def passed_through(stages: Sequence[BlockStage], block: Block, place: Place) -> Documents:
    """Apply all stages to a block."""
    for stage in stages:
        block = stage(block, place)
    assert isinstance(block, Documents)
    return block
