"""The rule by which lanes are dealt parts of a line.

Lanes read at their own rates: shards differ in documents, and documents in tokens per byte. So no
lane gets its share at the start. A part of what is left of the line is dealt at a time, and each
deal brings the lanes to the same level: of tokens that they hold, and of tokens that they have yet
to read, by the tokens per weight that each of them has found so far. What a deal misjudges, the
next one mends, and the last ones are small. (Loop scheduling knows this as factoring: Hummel,
Schonberg and Flynn, "Factoring: a method for scheduling parallel loops", Communications of the ACM
35(8), 1992.)

What is left is the rest of the run, but no more than an epoch, or than half of what was dealt
before: so the deals of a run grow with the logarithm of its epochs, and lanes that read at other
rates stay about as many epochs apart, in proportion.

If all lanes have found about the same, a deal gives half of what is left. Otherwise it gives a
quarter, and late deals give every lane parts from several places, so that what nobody could foresee
of a shard falls on all lanes.

A deal is made of what each lane reports when it gives batch number ``deal * every`` of its own, and
a round that begins `LAG` batches later or more may read what it dealt. So who is dealt what, and
when a lane knows of it, follows from numbers and never from time. All of it is computed in whole
numbers, so that every machine finds the same.

Each source of a mixture has a line of its own. What lanes should have of it in reserve is its share
of what they draw, among the sources that are not dealt to their end.

Cost: sorting the lanes, once per deal; 8 to 20 deals of a run of one epoch give something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Batches of a lane between its report and the first round that may read what the deal gave. With
#: fewer, ranks could wait for one another for ever: two steps pass until they have exchanged their
#: reports, a step may take batches of two numbers, and a lane makes a round one batch ahead, to say
#: whether another batch follows.
LAG = 4
REVISION = 4  # of the rule: with another, lanes would get other documents
SHARE = 4  # a deal gives one part in so many of what is left
SHARE_ALIKE = 2  # the same, where lanes are alike
BEFORE = 2  # a deal divides an epoch, or one part in so many of what was dealt before it
LATE = 16  # a deal is late if no more is left than so many times the reserve
STRIPES = 4  # that a late deal has at most, each of a quarter of `every` batches per lane or more
ALIKE = 8  # lanes are alike that have found tokens per weight within one part in so many
DEALS = 256
UNSURE = 4  # the first deal goes by a rough rate, and holds lanes to so many times the reserve
UNENDING = 1 << 40  # epochs of a source that was finite and has no end now
FRACTION = 16  # bits of tokens per weight, and of shares, after the point
ONE = 1 << FRACTION
SETTINGS = ("batch_tokens", "every", "reserve", "first", "begin")  # that a state keeps of a rule
MOST_TOKENS = 1 << 47  # of an epoch, or ahead of a lane: more is not true, and sums would overflow


class Span(NamedTuple):
    """A part [low, high) of the line of an epoch."""

    epoch: int
    low: int
    high: int


class Report(NamedTuple):
    """What a lane reports of a line for a deal.

    Attributes:
        until: how far it sees: the weight, of what it was dealt, up to the end of its part.
        ahead: tokens up to there that it has still to give; found: tokens up to there in all. Both
            with the padding of their rows.
    """

    until: int
    ahead: int
    found: int


class Place(NamedTuple):
    """How far a source is dealt: an epoch, and the weight of its line that is."""

    epoch: int
    at: int


class Cut(NamedTuple):
    """A stripe that a deal gave of an epoch: lane l got [bounds[l], bounds[l + 1]) of its line.

    Attributes:
        deal: its number; epoch: of the line.
        bounds: (lanes + 1,) int64.
    """

    deal: int
    epoch: int
    bounds: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A source as it is dealt.

    Attributes:
        weight: of the line of an epoch; epochs: how many there are, or `UNENDING`.
        rate: tokens per weight, in units of 2**-16, by which the first deal goes.
        share: of the tokens that lanes draw, in units of 2**-16.
    """

    weight: int
    epochs: int
    rate: int
    share: int = ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class DealRule:
    """What the deals of a run depend on, besides what lanes report.

    A run that goes on with other settings has another rule from its next deal on. That deal goes by
    what every lane reports when the settings change, and a lane's next round may read what it gave.

    Attributes:
        lanes: how many.
        batch_tokens: of a lane's batch.
        every: batches of a lane from deal to deal.
        reserve: tokens that every lane should have, in its window or to read.
        lines: of the sources that are dealt, by the name of the source; "" where there is only one.
            Those of the rule before come first.
        first: number of the first deal by this rule; begin: batches that every lane had given then.
        before: the rule of the deals before that; None where there are none.
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
        run_tokens: int,
    ) -> DealRule:
        """The rule for a run.

        Args:
            lines, lanes, batch_tokens: see the class.
            window_tokens: of a lane.
            run_tokens: of an epoch, roughly.
        """
        lane_tokens = run_tokens // lanes
        every = max(lane_tokens // (batch_tokens * DEALS), 1)
        return cls(
            lanes=lanes,
            batch_tokens=batch_tokens,
            every=every,
            # Until the deal after the next one is known; and a round reads ahead of its batches, as
            # far as its window goes. Where that is much of a lane, it is better less full.
            reserve=(2 * every + LAG) * batch_tokens + min(window_tokens, lane_tokens // 128),
            lines=lines,
        )

    def after(self, before: DealRule, given: int) -> DealRule:
        """This rule for a run that was dealt by another one until lanes had given so many batches.

        Every lane has then reported for the deals before the first one by this rule.
        """
        return replace(self, first=before.known(given), begin=given, before=before)

    def describe(self) -> dict[str, Any]:
        """JSON-able: what a run that goes on keeps, whatever it would choose now."""
        lines = {
            name: [line.weight, line.epochs, line.rate, line.share]
            for name, line in self.lines.items()
        }
        settings = {name: getattr(self, name) for name in SETTINGS}
        before = None if self.before is None else self.before.describe()
        return {"revision": REVISION, **settings, "lines": lines, "before": before}

    def of_deal(self, number: int) -> DealRule:
        """The rule by which a deal is made."""
        rule = self
        while number < rule.first:
            assert rule.before is not None
            rule = rule.before
        return rule

    def before_first(self) -> list[list[int]]:
        """What a lane that has not begun has reported up to the first deal by this rule: nothing.

        Numbers of a deal and of a line, each pair followed by a `Report`.
        """
        deals, lines = range(1, self.first + 1), range(len(self.lines))
        return [[number, line, *Report(0, 0, 0)] for number in deals for line in lines]

    def known(self, step: int) -> int:
        """How many deals a round may use that begins with batch number `step` of its lane."""
        return self.first + 1 + max(step - self.begin - LAG, 0) // self.every

    def step(self, number: int) -> int:
        """The batch of a lane with which it reports for a deal, one by this rule but the first."""
        return self.begin + (number - self.first) * self.every

    def due(self, start: int, stop: int) -> range:
        """The deals for which a lane reports at its batches [start, stop)."""
        low, high = (-((self.begin - at) // self.every) for at in (start, stop))
        return range(self.first + max(low, 1), self.first + max(high, 1))


def deal(
    rule: DealRule,
    line: Line,
    number: int,
    place: Place,
    left: NDArray[np.int64],
    rate: int,
    *,
    among: int = ONE,
    alike: bool = False,
) -> tuple[list[Cut], Place]:
    """What a deal gives of a line, and how far it is dealt after that.

    Args:
        rule: of the run; line: one of its lines.
        number: of the deal.
        place: how far the line was dealt before.
        left: (lanes,) tokens that each lane has still to give, of what it was dealt.
        rate: tokens per weight of the line, in units of 2**-16.
        among: the share of the sources that are not dealt to their end.
        alike: whether lanes have found about as many tokens per weight as one another.
    """
    cuts: list[Cut] = []
    at, end = place.epoch * line.weight + place.at, line.epochs * line.weight
    rate = min(rate, (MOST_TOKENS << FRACTION) // max(line.weight, at // BEFORE))
    level, interval = (
        max(tokens * line.share // max(among, line.share), 1)
        for tokens in (rule.reserve, rule.lanes * rule.batch_tokens * rule.every)
    )
    if not number:
        level *= UNSURE
    late = LATE * level * rule.lanes
    while at < end and int(left.min()) < level:
        rest = min(end - at, max(line.weight, at // BEFORE))
        if not cuts:  # no lane needs all of its reserve, and what is dealt later is dealt better
            level -= level // 4
        tokens = rest * rate >> FRACTION
        amount = max(
            tokens // (SHARE_ALIKE if alike else SHARE), int(np.maximum(level - left, 0).sum())
        )
        if tokens - amount < interval:
            amount = tokens
        poured = _poured(left, amount)
        given = rest
        if amount != tokens:  # never nothing: what weighs 1 may be longer than what is missing
            given = min(max((int(poured.sum()) << FRACTION) // rate, 1), rest)
        striped = tokens < late and not alike
        stripes = min(STRIPES, max(4 * amount // interval, 1)) if striped else 1
        ends = [at + given * n // stripes for n in range(stripes + 1)]
        for low, high in pairwise(ends):
            cuts += _cuts(number, line.weight, low, high, poured)
        left, at = left + poured, at + given
        if not amount and line.epochs == UNENDING:
            break  # epochs without tokens would go on for ever
    return cuts, Place(*divmod(at, line.weight))


def _cuts(
    number: int, weight: int, low: int, high: int, poured: NDArray[np.int64]
) -> Iterator[Cut]:
    """A stripe [low, high) of epochs of that weight one after the other: a cut of each of them."""
    while low < high:
        epoch, first = divmod(low, weight)
        stop = min(high, low - first + weight)
        yield Cut(number, epoch, first + _parts(poured, stop - low))
        low = stop


def _poured(left: NDArray[np.int64], amount: int) -> NDArray[np.int64]:
    """How `amount` is divided so that the lanes come to one level, as far as it goes."""
    ordered = np.sort(left)
    counts = np.arange(1, len(ordered) + 1)
    levels = (amount + np.cumsum(ordered)) // counts  # if the lowest so many get something
    reached = levels[:-1] <= ordered[1:]
    level = levels[int(np.argmax(reached))] if reached.any() else levels[-1]
    poured: NDArray[np.int64] = np.maximum(level - left, 0)
    return poured


def _parts(poured: NDArray[np.int64], given: int) -> NDArray[np.int64]:
    """(lanes + 1,) where each lane's part of a weight begins, in proportion to `poured`."""
    before = np.zeros(len(poured) + 1, dtype=np.int64)
    np.cumsum(poured, out=before[1:])
    if not before[-1]:  # nothing to go by
        before = np.arange(len(poured) + 1, dtype=np.int64)
    total = int(before[-1])
    return np.array([given * n // total for n in before.tolist()], dtype=np.int64)
