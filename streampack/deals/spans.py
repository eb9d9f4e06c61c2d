"""Sequence of the parts of a source that a lane reads.

Either the lanes divide every epoch equally, or they are dealt parts of its line as they need them.
A lane that has read all its parts while more are to be dealt has to wait: it is not at its end.
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
class LanePart:
    """A part of a source that a lane reads.

    Attributes:
        epoch: epoch of the part.
        reader: reader of its documents.
        span: span of the line if the part was dealt, else None.
    """

    epoch: int
    reader: LaneReader
    span: Span | None = None


class Parts(ABC):
    """Indexed parts of one lane."""

    @abstractmethod
    def part(self, number: int) -> LanePart | None:
        """Return the part with index `number`, or None if it does not exist, or not yet."""

    def entries(self, number: int) -> dict[str, Any]:
        """Return entries for the cursor at the beginning of part `number`."""
        return {}

    def read_another(self, number: int, empty: int) -> bool:
        """Continue after part `number` and `empty` parts in a row without documents.

        Returns:
            False if the lane has no documents, and neither have the others.
        """
        return True

    @property
    def ended(self) -> bool:
        """True if no part will follow the known ones."""
        return True

    def begin_round(self, step: int) -> None:  # noqa: B027
        """Make the deals available that a round beginning with batch `step` of the lane may use."""


@dataclass(slots=True)
class EqualParts(Parts):
    """Equal shares of every epoch; a part is the lane's share of an epoch.

    Attributes:
        shift: offset from the lane to the share that it reads. An endless source with fewer
            documents than lanes has empty shares, and their lanes read the shares of others.
    """

    source: Source
    lane: int
    lanes: int
    seed: int
    shuffle: bool
    epochs: int | None
    shift: int = 0

    def part(self, number: int) -> LanePart | None:
        """See `Parts`."""
        if self.epochs is not None and number >= self.epochs:
            return None
        readers = self.source.lanes(self.lanes, seed=self.seed, epoch=number, shuffle=self.shuffle)
        return LanePart(number, readers[(self.lane + self.shift) % self.lanes])

    def entries(self, number: int) -> dict[str, Any]:
        """See `Parts`."""
        return {"epoch": number, **({"shift": self.shift} if self.shift else {})}

    def read_another(self, number: int, empty: int) -> bool:
        """See `Parts`; the next part is the share of the next lane."""
        self.shift = (self.shift + 1) % self.lanes
        return empty < self.lanes


class DealtSpans(Parts):
    """Parts dealt to the lane.

    Args:
        source, lane, seed, shuffle: arguments of the readers of parts.
        dealer: the run's dealer in this process; name: name of the source's line.
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
        self._last: tuple[Span, LinePart] | None = None  # cached, because every block needs it

    def begin_round(self, step: int) -> None:
        """See `Parts`."""
        deals = self._dealer.rule.known(step)
        if deals > self._deals:
            self._deals = deals
            count = self._dealer.count(self._name, deals)
            if count > self._count:
                self._count = count
                self._spans = self._dealer.spans(self._name, self._lane, deals)

    def part(self, number: int) -> LanePart | None:
        """See `Parts`."""
        if number >= len(self._spans):
            return None
        span = self._spans[number]
        return LanePart(span.epoch, self._reader(span), span)

    @property
    def ended(self) -> bool:
        """See `Parts`."""
        return self._dealer.used_up(self._deals, self._name)

    def weights(self, number: int, cursor: dict[str, Any] | None) -> tuple[int, int, int]:
        """Return the weights before part `number`, of the part, and of its rest after a cursor."""
        before = sum(span.high - span.low for span in self._spans[:number])
        if number >= len(self._spans):
            return before, 0, 0
        span = self._spans[number]
        return before, span.high - span.low, self._reader(span).left(cursor)

    def _reader(self, span: Span) -> LinePart:
        if self._last is None or self._last[0] != span:
            epoch, low, high = span
            reader = self._source._span(
                low, high, seed=self._seed, epoch=epoch, shuffle=self._shuffle
            )
            self._last = (span, reader)
        return self._last[1]
