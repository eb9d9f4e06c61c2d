"""The protocol of a lane's document stream, and positions in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.deals.dealer import Dealer
from streampack.documents.blocks import Documents
from streampack.metrics import LaneTimes
from streampack.sources.error_policy import ErrorPolicy
from streampack.window.packed_rows import PackedRows

if TYPE_CHECKING:
    from streampack.streams.stream import StreamConfig

#: The cursor of a source before its first document: the part, its epoch, the reader's position in
#: it, the tokens before that position, and the tokens before the part.
BEGINNING: dict[str, Any] = {"part": 0, "epoch": 0, "at": None, "tokens": 0, "before": 0}


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position in a stream: reading from `cursor` gives documents from index `serial` on."""

    serial: int
    cursor: dict[str, Any]


class Remaining(NamedTuple):
    """A lane's view of a source that it is dealt.

    Attributes:
        source: index of the source in the mixture.
        until: weight dealt to the lane up to the end of the current part.
        ahead: estimated tokens from the next document to the end of the part, at the part's
            density of tokens so far.
        tokens: tokens before the next document.
    """

    source: int
    until: int
    ahead: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Opening:
    """Arguments that open the stream of a lane.

    Attributes:
        config: configuration of the run.
        lane: index of the lane, which selects its part of each source.
        skips: policy for broken documents and shards.
        times: accumulates the seconds of each stage.
        position: return value of `position_before` of an equal stream; None is the beginning.
        dealer: deals the lanes their parts of the sources; None divides these equally.
    """

    config: StreamConfig
    lane: int
    skips: ErrorPolicy
    times: LaneTimes = field(default_factory=LaneTimes)
    position: StreamPosition | None = None
    dealer: Dealer | None = None


class LaneStream(ABC):
    """The documents of one lane, numbered from 0, as blocks of token ids.

    Attributes:
        serial: index of the next document.
        skips: policy for broken documents and shards, with the lane's counts.
    """

    def __init__(self, opening: Opening) -> None:
        self.skips = opening.skips
        self.serial = opening.position.serial if opening.position else 0
        self._pending: Documents | None = None

    def peek(self) -> Documents | None:
        """Return the next documents (at least one), or None if there are none; see `ended`."""
        while self._pending is None or not len(self._pending):
            self._pending = self._next_documents()
            if self._pending is None:
                return None
        return self._pending

    def consume(self, count: int) -> None:
        """Step over the next `count` documents that `peek` returned."""
        if count:
            assert self._pending is not None
            self._pending = self._pending[count:]
            self.serial += count

    def serials(self, count: int) -> NDArray[np.int64]:
        """Return the serials (count,) int64 of the next documents that `peek` returned."""
        return np.arange(self.serial, self.serial + count, dtype=np.int64)

    def step_over(self, count: int) -> int:
        """Step over the next `count` documents; return the number missing at the end."""
        while count and (documents := self.peek()) is not None:
            step = min(len(documents), count)
            self.consume(step)
            count -= step
        return count

    @property
    def ended(self) -> bool:
        """Return whether None from `peek` is the end; otherwise the lane will be dealt more."""
        return True

    def begin_round(self, step: int, *, again: bool = False) -> None:  # noqa: B027
        """Announce that the round to be filled next begins with batch `step` of the lane.

        `again` is True if documents of a round that was filled before are reread, by its rules.
        """

    def remaining(self) -> list[Remaining]:
        """Return the view of every source that the lane is dealt, in the order of rule lines."""
        return []

    def completed(self, batches: list[PackedRows]) -> list[PackedRows]:
        """Return the batches of a round, completed with data of the stream."""
        return batches

    @abstractmethod
    def position_before(self, serial: int) -> StreamPosition:
        """Return the latest known position before document `serial`; drop earlier positions."""

    @abstractmethod
    def _next_documents(self) -> Documents | None:
        """Return the documents after the consumed ones; None if there are none, or not yet."""
