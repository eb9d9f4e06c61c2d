"""Rule by which parts of a line are dealt to lanes.

A line is a source's shards end to end, measured by weight. Lanes read it at different rates: shards
differ in documents, and documents in tokens per byte. So no lane gets its share at the start.
Each deal gives out a part of the remaining line and brings the lanes to the same level of tokens
held and yet to read, estimated by the tokens per weight that each lane has found so far. The next
deal corrects errors of the estimate, and the last deals are small. (In loop scheduling this is
factoring: Hummel, Schonberg and Flynn, "Factoring: a method for scheduling parallel loops",
Communications of the ACM 35(8), 1992.)

The remaining line is the rest of the run, but at most an epoch or half of the line dealt before,
whichever is longer. So the number of deals grows with the logarithm of the number of epochs, and
lanes of different rates stay about as many epochs apart, in proportion.

If all lanes have found nearly the same rate, a deal gives half of the remaining line. Otherwise it
gives a quarter, and late deals give every lane parts from several positions, so that an unusual
shard affects all lanes alike.

A deal is computed from each lane's report at its own batch ``deal * every``, and rounds that begin
`LAG` or more batches later may read the dealt parts. So the parts of a lane, and the round in which
it learns of them, depend on batch indices and never on time. All arithmetic is on integers, so that
every machine computes the same deals.

Each source of a mixture has a line of its own. The reserve that lanes should have of it is its
share of the tokens they draw, among the sources that are not fully dealt.

Cost: sorting the lanes, once per deal; 8 to 20 deals of a run of one epoch give something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Batches of a lane between its report and the first round that may read the deal's parts. With
#: fewer, ranks could deadlock: exchanging reports takes two steps, a step may take two batches of a
#: lane, and a lane plans a round one batch ahead, to report if another batch follows.
LAG = 4
REVISION = 4  # revision of the rule, raised when lanes would read other documents
SHARE = 4  # a deal gives 1 / SHARE of the remaining line
SHARE_ALIKE = 2  # share if all lanes have about the same rate
BEFORE = 2  # a deal divides at most an epoch, or 1 / BEFORE of the line dealt before it
LATE = 16  # a deal is late if the remaining line is below LATE times the reserve
STRIPES = 4  # most stripes of a late deal, each of at least every / 4 batches per lane
ALIKE = 8  # lanes are alike if their tokens per weight differ by at most 1 / ALIKE
DEALS = 256
UNSURE = 4  # the first deal uses a rough rate, and fills lanes to UNSURE times the reserve
UNENDING = 1 << 40  # epochs of a source that was finite and is endless now
FRACTION = 16  # fractional bits of tokens per weight, and of shares
ONE = 1 << FRACTION
SETTINGS = ("batch_tokens", "every", "reserve", "first", "begin")  # settings that a state stores
MOST_TOKENS = 1 << 47  # limit per epoch and per lane: more is implausible and would overflow sums


class Span(NamedTuple):
    """A part [low, high) of the line of an epoch."""

    epoch: int
    low: int
    high: int


class Report(NamedTuple):
    """Report of a lane on a line for a deal.

    Attributes:
        until: weight of the parts dealt to the lane, up to the end of its current part.
        ahead: tokens up to `until` that it has still to deliver; found: all tokens up to `until`.
            Both include the padding of their rows.
    """

    until: int
    ahead: int
    found: int


class LinePosition(NamedTuple):
    """Position up to which a source is dealt: an epoch, and a weight of its line."""

    epoch: int
    at: int


class Cut(NamedTuple):
    """Stripe of an epoch given by a deal: lane l got [bounds[l], bounds[l + 1]) of the line.

    Attributes:
        deal: index of the deal; epoch: epoch of the line.
        bounds: (lanes + 1,) int64 weights.
    """

    deal: int
    epoch: int
    bounds: NDArray[np.int64]


class Line(NamedTuple):
    """Properties of a dealt source.

    Attributes:
        weight: weight of an epoch's line; epochs: number of epochs, or `UNENDING`.
        rate: estimated tokens per weight for the first deal, in units of 2**-16.
        share: the source's share of the tokens that lanes draw, in units of 2**-16.
    """

    weight: int
    epochs: int
    rate: int
    share: int = ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class DealRule:
    """Settings that, with the lanes' reports, determine the deals of a run.

    A run that continues with other settings has another rule from its next deal on. That deal uses
    the reports of every lane at the change of settings, and a lane's next round may read its parts.

    Attributes:
        lanes: number of lanes.
        batch_tokens: tokens per batch of a lane.
        every: batches of a lane between two deals.
        reserve: tokens that every lane should have, in its window or to read.
        lines: lines of the dealt sources by source name; "" for a single source. Lines of the
            previous rule come first.
        first: index of the first deal by this rule; begin: batches delivered by every lane then.
        before: rule of the earlier deals, if any.
    """

    lanes: int
    batch_tokens: int
    every: int
    reserve: int
    lines: Mapping[str, Line]
    first: int = 0
    begin: int = 0
    before: DealRule | None = None

    @classmethod
    def of(
        cls,
        lines: Mapping[str, Line],
        *,
        lanes: int,
        batch_tokens: int,
        window_tokens: int,
        window_share: int,
        run_tokens: int,
    ) -> DealRule:
        """Choose the rule for a run.

        Args:
            lines, lanes, batch_tokens: see the class.
            window_tokens: tokens of a lane's window.
            window_share: the reserve has a window, but at most 1 / `window_share` of a lane.
            run_tokens: estimated tokens of an epoch.
        """
        lane_tokens = run_tokens // lanes
        every = max(lane_tokens // (batch_tokens * DEALS), 1)
        return cls(
            lanes=lanes,
            batch_tokens=batch_tokens,
            every=every,
            # It must last until the deal after the next one is known. A round also reads ahead of
            # its batches by a window, or by less if the window is a large share of the lane.
            reserve=(2 * every + LAG) * batch_tokens
            + min(window_tokens, lane_tokens // window_share),
            lines=lines,
        )

    def after(self, before: DealRule, batches: int) -> DealRule:
        """Return this rule as the successor of `before`, after `batches` batches of every lane.

        By then every lane has reported for all deals by the earlier rule.
        """
        return replace(self, first=before.known(batches), begin=batches, before=before)

    def describe(self) -> dict[str, Any]:
        """Return the JSON-compatible settings that a continued run keeps."""
        lines = {name: [*line] for name, line in self.lines.items()}
        settings = {name: getattr(self, name) for name in SETTINGS}
        before = None if self.before is None else self.before.describe()
        return {"revision": REVISION, **settings, "lines": lines, "before": before}

    def of_deal(self, number: int) -> DealRule:
        """Return the rule of deal `number`."""
        rule = self
        while number < rule.first:
            assert rule.before is not None
            rule = rule.before
        return rule

    def before_first(self) -> list[list[int]]:
        """Return the reports, all empty, of an unstarted lane up to the first deal by this rule.

        Each is the indices of a deal and a line, followed by a `Report`.
        """
        deals, lines = range(1, self.first + 1), range(len(self.lines))
        return [[number, line, *Report(0, 0, 0)] for number in deals for line in lines]

    def known(self, step: int) -> int:
        """Return the number of deals available to a round that begins at batch `step` of a lane."""
        return self.first + 1 + max(step - self.begin - LAG, 0) // self.every

    def step(self, number: int) -> int:
        """Return the batch at which a lane reports for deal `number`, above `first`."""
        return self.begin + (number - self.first) * self.every

    def due(self, start: int, stop: int) -> range:
        """Return the deals for which a lane reports at its batches [start, stop)."""
        low, high = (-((self.begin - at) // self.every) for at in (start, stop))
        return range(self.first + max(low, 1), self.first + max(high, 1))


def deal(
    rule: DealRule,
    line: Line,
    number: int,
    position: LinePosition,
    left: NDArray[np.int64],
    rate: int,
    *,
    among: int = ONE,
    alike: bool = False,
) -> tuple[list[Cut], LinePosition]:
    """Compute the cuts that a deal gives of a line, and the position up to which it is dealt then.

    Args:
        rule: the run's rule; line: one of its lines.
        number: index of the deal.
        position: position up to which the line was dealt before.
        left: (lanes,) tokens that each lane has still to deliver from its parts.
        rate: tokens per weight of the line, in units of 2**-16.
        among: sum of the shares of sources that are not fully dealt.
        alike: True if all lanes have found nearly the same tokens per weight.
    """
    cuts: list[Cut] = []
    at, end = position.epoch * line.weight + position.at, line.epochs * line.weight
    rate = min(rate, (MOST_TOKENS << FRACTION) // max(line.weight, at // BEFORE))
    level, interval = (
        max(tokens * line.share // max(among, line.share), 1)
        for tokens in (rule.reserve, rule.lanes * rule.batch_tokens * rule.every)
    )
    if not number:
        level *= UNSURE
    late = LATE * level * rule.lanes
    while at < end and int(left.min()) < level:
        remaining = min(end - at, max(line.weight, at // BEFORE))
        if not cuts:  # leave a quarter of the reserve open, since later deals know more
            level -= level // 4
        tokens = remaining * rate >> FRACTION
        amount = max(
            tokens // (SHARE_ALIKE if alike else SHARE), int(np.maximum(level - left, 0).sum())
        )
        if tokens - amount < interval:
            amount = tokens
        poured = _poured(left, amount)
        given = remaining
        if amount != tokens:  # at least 1, which may be more tokens than are missing
            given = min(max((int(poured.sum()) << FRACTION) // rate, 1), remaining)
        striped = tokens < late and not alike
        stripes = min(STRIPES, max(4 * amount // interval, 1)) if striped else 1
        ends = [at + given * n // stripes for n in range(stripes + 1)]
        for low, high in pairwise(ends):
            cuts += _cuts(number, line.weight, low, high, poured)
        left, at = left + poured, at + given
        if not amount and line.epochs == UNENDING:
            break  # epochs without tokens would never end
    return cuts, LinePosition(*divmod(at, line.weight))


def _cuts(
    number: int, weight: int, low: int, high: int, poured: NDArray[np.int64]
) -> Iterator[Cut]:
    """Divide a stripe [low, high) of consecutive epochs, of weight each, into a cut per epoch."""
    while low < high:
        epoch, first = divmod(low, weight)
        stop = min(high, low - first + weight)
        yield Cut(number, epoch, first + _parts(poured, stop - low))
        low = stop


def _poured(left: NDArray[np.int64], amount: int) -> NDArray[np.int64]:
    """Divide `amount` among lanes so that the lowest ones rise to one level (water filling)."""
    ordered = np.sort(left)
    counts = np.arange(1, len(ordered) + 1)
    levels = (amount + np.cumsum(ordered)) // counts  # level if the lowest `counts` lanes share it
    reached = levels[:-1] <= ordered[1:]
    level = levels[int(np.argmax(reached))] if reached.any() else levels[-1]
    poured: NDArray[np.int64] = np.maximum(level - left, 0)
    return poured


def _parts(poured: NDArray[np.int64], amount: int) -> NDArray[np.int64]:
    """Return the bounds (lanes + 1,) of the lanes' parts of a weight, in proportion to `poured`."""
    before = np.zeros(len(poured) + 1, dtype=np.int64)
    np.cumsum(poured, out=before[1:])
    if not before[-1]:  # nothing was poured: equal parts
        before = np.arange(len(poured) + 1, dtype=np.int64)
    total = int(before[-1])
    return np.array([amount * n // total for n in before.tolist()], dtype=np.int64)
