"""What a stream of documents of one lane is, and the places in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

from streampack.documents.blocks import Documents
from streampack.sources.skips import Skips
from streampack.window.packed_rows import PackedRows

#: The cursor of a source before its first document: the part, its epoch, the place in it (of its
#: reader), the tokens before that place, and those before the part.
BEGINNING: dict[str, Any] = {"part": 0, "epoch": 0, "at": None, "tokens": 0, "before": 0}


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A place in a stream: reading from `cursor` gives documents from number `serial` on."""

    serial: int
    cursor: dict[str, Any]


class Remaining(NamedTuple):
    """What a lane can see of a source that it is dealt.

    Attributes:
        source: its number in the mixture.
        until: the weight, of what it was dealt, up to the end of the part that it reads.
        ahead: tokens from those that come next up to there, as the part's tokens so far say.
        tokens: before those that come next.
    """

    source: int
    until: int
    ahead: int
    tokens: int


class LaneStream(ABC):
    """The documents of one lane, numbered from 0, as blocks of token ids.

    Attributes:
        serial: number of the document that comes next.
        skips: what to do with broken content, and what the lane has met.
    """

    def __init__(self, skips: Skips, position: StreamPosition | None) -> None:
        self.skips = skips
        self.serial = position.serial if position else 0
        self._pending: Documents | None = None

    def peek(self) -> Documents | None:
        """The documents that come next (at least one), or None if there are none; see `ended`."""
        while self._pending is None or not len(self._pending):
            self._pending = self._next_documents()
            if self._pending is None:
                return None
        return self._pending

    def consume(self, count: int) -> None:
        """Step over the next `count` documents of what `peek` returned."""
        if count:
            assert self._pending is not None
            self._pending = self._pending[count:]
            self.serial += count

    def step_over(self, count: int) -> int:
        """Step over the next `count` documents; returns how many of them there are not."""
        while count and (documents := self.peek()) is not None:
            step = min(len(documents), count)
            self.consume(step)
            count -= step
        return count

    @property
    def ended(self) -> bool:
        """Whether None from `peek` is the end; otherwise the lane will be dealt more."""
        return True

    def allow(self, step: int) -> None:  # noqa: B027
        """The next round to be filled begins with batch number `step` of the lane."""

    def reweigh(self, step: int) -> None:  # noqa: B027
        """Go by the weights that hold for a round that begins with batch `step` of the lane."""

    def remaining(self) -> list[Remaining]:
        """Of every source that the lane is dealt, in the order of the rule's lines."""
        return []

    def completed(self, batches: list[PackedRows]) -> list[PackedRows]:
        """The batches of a round, with what only their stream knows."""
        return batches

    @abstractmethod
    def position_before(self, serial: int) -> StreamPosition:
        """The latest known place from which document `serial` is read; earlier ones are dropped."""

    @abstractmethod
    def _next_documents(self) -> Documents | None:
        """The documents after those that are consumed; None if there are none, or not yet."""
