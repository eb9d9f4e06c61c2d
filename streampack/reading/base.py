"""What a source is: lanes of blocks with cursors.

A `Source` yields documents in a fixed number of lanes. The order inside a lane is a pure function
of (manifest, seed, epoch, lane), and a cursor returned with a block restarts the lane behind it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from streampack.documents import Conversations, Documents, Texts
from streampack.packing.overflow import Overflow
from streampack.reading.skips import Skips

__all__ = ["Block", "Cursor", "LaneReader", "Source"]

Block = Documents | Texts | Conversations
#: A place in a lane's stream: small, JSON-able, meaningful to the source alone.
Cursor = dict[str, Any]


class LaneReader(ABC):
    """One lane of one epoch."""

    @abstractmethod
    def read(self, cursor: Cursor | None, skips: Skips) -> Iterator[tuple[Block, Cursor]]:
        """Yield blocks, each with the cursor of the place behind it.

        Args:
            cursor: start behind the block that came with it; None starts the lane.
            skips: what to do with broken content, and where it is recorded.
        """


class Source(ABC):
    """A stream of documents, split into lanes."""

    #: True if starting from a cursor costs about the same anywhere in the stream.
    seekable: bool
    #: True if any number of lanes can be cut from the data.
    splittable: bool
    #: True if blocks are `Documents` (token ids), False if they are `Texts` or `Conversations`.
    tokenized: bool
    #: What happens to documents longer than a row where no packer is named.
    overflow: Overflow = "split"
    #: True if its documents can be read only once, in this process.
    once: bool = False

    @abstractmethod
    def prepare(self) -> None:
        """List what there is, once, in the process that builds the dataset.

        Called before the source is handed to workers; it may do I/O and must be idempotent.
        """

    @abstractmethod
    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Sequence[LaneReader]:
        """The n lanes of one epoch. Cheap: nothing is opened before a reader is read."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON-able identity for the fingerprint: kind, manifest digest, columns."""

    def check_lanes(self, n: int, *, seed: int, shuffle: bool) -> None:
        """Raise `ConfigError` if it cannot be split into n lanes."""
        self.lanes(n, seed=seed, epoch=0, shuffle=shuffle)

    def max_lanes(self) -> int | None:
        """The largest number of lanes it can be split into, or None if any number will do."""
        return None

    def reader_bytes(self) -> int:
        """About the memory that a lane's reader holds, beside what it has handed out."""
        return 0

    def estimate_tokens(self) -> int | None:
        """A rough number of tokens in one epoch, or None if nothing is known."""
        return None

    def shard_name(self, shard: int) -> str:
        """What leads to a shard, by its number in `Documents.origin`."""
        return f"shard {shard}"

    def document_name(self, origin: np.void) -> str:
        """Words that lead a person to the document."""
        return f"document {int(origin['index'])} of shard {int(origin['shard'])}"
