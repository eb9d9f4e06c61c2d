"""Which parts of a source a lane reads, one after the other.

Either the lanes divide every epoch equally, or they are dealt parts of its line as they need them
A lane that has read all that it was dealt, while there is more to deal, has
to wait: it is not at its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from streampack.deals.dealer import Dealer
from streampack.deals.rule import Span
from streampack.sources.base import LaneReader, LinePart, Source
from streampack.sources.sharded import ShardedSource


@dataclass(frozen=True, slots=True)
class Part:
    """What a lane reads next.

    Attributes:
        epoch: it belongs to.
        reader: of its documents.
        span: the part of the line, where it was dealt.
    """

    epoch: int
    reader: LaneReader
    span: Span | None = None


class Parts(ABC):
    """The parts of one lane, by their numbers."""

    @abstractmethod
    def part(self, number: int) -> Part | None:
        """The part of that number; None if there is none, or not yet."""

    @property
    def ended(self) -> bool:
        """Whether there is no part after those that are known."""
        return True

    def allow(self, step: int) -> None:  # noqa: B027
        """The next round to be filled begins with batch number `step` of the lane."""


@dataclass(slots=True)
class EqualParts(Parts):
    """The lane's share of every epoch; a part is an epoch.

    Attributes:
        shift: added to the lane for the share that is read. An endless source with fewer documents
            than lanes has nothing for some of them, which read the shares of others instead.
    """

    source: Source
    lane: int
    lanes: int
    seed: int
    shuffle: bool
    epochs: int | None
    shift: int = 0

    def part(self, number: int) -> Part | None:
        """See `Parts`."""
        if self.epochs is not None and number >= self.epochs:
            return None
        readers = self.source.lanes(self.lanes, seed=self.seed, epoch=number, shuffle=self.shuffle)
        return Part(number, readers[(self.lane + self.shift) % self.lanes])


class DealtSpans(Parts):
    """What the lane is dealt.

    Args:
        source, lane, seed, shuffle: whose documents.
        dealer: of the run, in this process; name: of the source's line.
    """

    def __init__(
        self,
        source: ShardedSource,
        lane: int,
        seed: int,
        shuffle: bool,
        dealer: Dealer,
        name: str,
    ) -> None:
        self._source = source
        self._lane = lane
        self._seed = seed
        self._shuffle = shuffle
        self._dealer = dealer
        self._name = name
        self._deals = self._count = 0
        self._spans: list[Span] = []
        self._last: tuple[Span, LinePart] | None = None  # asked for again and again

    def allow(self, step: int) -> None:
        """See `Parts`."""
        deals = self._dealer.rule.known(step)
        if deals > self._deals:
            self._deals = deals
            count = self._dealer.count(self._name, deals)
            if count > self._count:
                self._count = count
                self._spans = self._dealer.spans(self._name, self._lane, deals)

    def part(self, number: int) -> Part | None:
        """See `Parts`."""
        if number >= len(self._spans):
            return None
        span = self._spans[number]
        return Part(span.epoch, self._reader(span), span)

    @property
    def ended(self) -> bool:
        """See `Parts`."""
        return self._dealer.used_up(self._deals, self._name)

    def weights(self, number: int, cursor: dict[str, Any] | None) -> tuple[int, int, int]:
        """The weight of the parts before `number`; that of it; and what is unread at a cursor."""
        before = sum(span.high - span.low for span in self._spans[:number])
        if number >= len(self._spans):
            return before, 0, 0
        span = self._spans[number]
        return before, span.high - span.low, self._reader(span).left(cursor)

    def _reader(self, span: Span) -> LinePart:
        if self._last is None or self._last[0] != span:
            epoch, low, high = span
            reader = self._source.span(
                low, high, seed=self._seed, epoch=epoch, shuffle=self._shuffle
            )
            self._last = (span, reader)
        return self._last[1]
