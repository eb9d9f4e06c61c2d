"""Choose the source of a mixture's next quantum: weights, shares of the tokens, credits.

Steps for every quantum (the few documents that are drawn from one source at a time):
  1. Each source has a credit: the tokens it should have given by now, minus those it has given.
     Credits add up to zero.
  2. Sources with a credit of 0 or more are eligible. The one with the earliest deadline is
     chosen: the time at which its credit would exceed the largest quantum drawn so far, if it
     continued to grow as it does now. Ties go to the first.
  3. The tokens of the quantum are counted once it is drawn: the credit of every source grows by
     its share of them, and the credit of the source that gave them falls by all of them.

The tokens drawn from a source never exceed its share by more than one quantum. They never fall
short of it by more than one, as long as quanta do not become larger than earlier ones. (Always
taking the largest credit, which is simpler, lets one of many sources fall short by two.) The size
of a quantum is known only when it is read, so no rule can be more exact. Arithmetic is on integers,
the same on any machine.

Shares may change over the run, linearly between knots, or at once where two knots share a position;
the target is their integral.

Cost: some microseconds per quantum and source.

Source: J. Bennett, H. Zhang, "WF2Q: Worst-case Fair Weighted Fair Queueing" (1996), with the size
of an expected quantum in place of a known packet's.
"""

from __future__ import annotations

import math
import numbers
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from streampack.arguments import whole_value
from streampack.errors import ConfigError

ONE = 1 << 40  # sum of the shares of a knot
PARTS_PER_TOKEN = 1 << 20  # unit of credits, in which they stay below 2**53


@dataclass(frozen=True, slots=True)
class TokenShares:
    """Shares of S sources as a function of the tokens of the run.

    Attributes:
        knots: pairs (tokens of the run, S shares in units of 2**-40 that add up to one), in order
            from 0; linear in between, constant after the last. At a position with two knots the
            shares step from the first to the second.
    """

    knots: tuple[tuple[int, tuple[int, ...]], ...]

    @classmethod
    def of_weights(cls, knots: Sequence[tuple[int, Sequence[float | Fraction]]]) -> TokenShares:
        """Scale weights to shares: they must be finite and not negative, with a sum above zero."""
        return cls(tuple((at, _shares(weights)) for at, weights in knots))

    def in_steps(self) -> TokenShares:
        """Return shares that stay constant from each knot to the next and step there."""
        steps = [
            knot
            for (_, before), (at, after) in pairwise(self.knots)
            for knot in ((at, before), (at, after))
        ]
        return TokenShares((self.knots[0], *steps))

    def rates(self, at: int, active: Sequence[bool]) -> list[int]:
        """Return S numbers in proportion to the shares of the active sources at one moment.

        Inactive sources have 0. If no active source has a share, the next knot at which one has a
        share counts; all are 0 without such a knot.
        """
        here = bisect_right(self.knots, at, key=lambda knot: knot[0]) - 1
        now = self._between(here, at, at + 1)
        for shares in (now, *(knot for _, knot in self.knots[here:])):
            among = [share if on else 0 for share, on in zip(shares, active, strict=True)]
            if any(among):
                return among
        return [0] * len(active)

    def integrals(self, start: int, stop: int) -> list[int]:
        """Return S numbers in proportion to the tokens due between two moments, start < stop."""
        due = [0] * len(self.knots[0][1])
        while start < stop:
            k = bisect_right(self.knots, start, key=lambda knot: knot[0]) - 1
            last = k + 1 == len(self.knots)
            end = stop if last else min(stop, self.knots[k + 1][0])
            for i, part in enumerate(self._between(k, start, end)):
                due[i] += part
            start = end
        return due

    def _between(self, k: int, start: int, stop: int) -> list[int]:
        """Integrate from `start` to `stop`, both between knots k and k + 1 (or after the last)."""
        at, shares = self.knots[k]
        tokens = stop - start
        if k + 1 == len(self.knots):
            return [share * tokens for share in shares]
        end, following = self.knots[k + 1]
        twice = start + stop - 2 * at
        return [
            share * tokens + (later - share) * tokens * twice // (2 * (end - at))
            for share, later in zip(shares, following, strict=True)
        ]


def _shares(weights: Sequence[float | Fraction]) -> tuple[int, ...]:
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    shares = [int(weight * ONE / total) for weight in exact]
    largest = max(range(len(shares)), key=shares.__getitem__)
    shares[largest] += ONE - sum(shares)
    return tuple(shares)


class Credits:
    """Credits of S sources in one lane.

    Args:
        shares: shares of the run's tokens.
        lanes: number of lanes; when a lane has drawn t tokens, the run counts ``t * lanes``.
        tokens: tokens drawn in the lane so far.
        quantum: the largest quantum so far, in tokens.
        amounts: (S,) credit of each source, in units of 2**-20 tokens.
        active: (S,) False for sources that have ended.
    """

    def __init__(
        self,
        shares: TokenShares,
        lanes: int,
        *,
        tokens: int,
        quantum: int,
        amounts: Sequence[int],
        active: Sequence[bool],
    ) -> None:
        self._shares = shares
        self._lanes = lanes
        self.tokens = tokens
        self.quantum = quantum
        self.amounts = list(amounts)
        self.active = list(active)
        # The sum stays 0, also if a source that had ended was removed, or the state is damaged.
        self._level(-sum(self.amounts))

    def choose(self) -> int | None:
        """Return the index of the next quantum's source; None if no source with a share is left."""
        rates = self._rates()
        best: int | None = None
        for i, rate in enumerate(rates):
            credit = self.amounts[i]
            if not self.active[i] or credit < 0 or (rate == 0 and credit == 0):
                continue
            if best is None or self._room(i) * rates[best] < self._room(best) * rate:
                best = i
        return best

    def _room(self, i: int) -> int:
        return max(self.quantum, 1) * PARTS_PER_TOKEN - self.amounts[i]

    def draw(self, source: int, tokens: int) -> None:
        """Count a quantum of `tokens` from `source`."""
        lanes, amounts = self._lanes, self.amounts
        start, stop = self.tokens * lanes, (self.tokens + tokens) * lanes
        due = [
            part if on else 0
            for part, on in zip(self._shares.integrals(start, stop), self.active, strict=True)
        ]
        if not any(due):
            due = self._rates()
        total = sum(due) or 1
        for i, part in enumerate(due):
            amounts[i] += tokens * PARTS_PER_TOKEN * part // total
        amounts[source] -= sum(amounts)  # its tokens, and the remainders of the divisions
        self.tokens += tokens
        self.quantum = max(self.quantum, tokens)

    def end(self, source: int) -> None:
        """End a source that has no more documents; the others share its weight and its credit."""
        credit = self.amounts[source]
        self.amounts[source] = 0
        self.active[source] = False
        self._level(credit)

    def _level(self, credit: int) -> None:
        """Spread credit over the active sources by their shares."""
        rates = self._rates()
        total = sum(rates)
        if not credit or not total:
            return
        parts = [credit * rate // total for rate in rates]
        parts[max(range(len(rates)), key=rates.__getitem__)] += credit - sum(parts)
        self.amounts = [before + part for before, part in zip(self.amounts, parts, strict=True)]

    def _rates(self) -> list[int]:
        return self._shares.rates(self.tokens * self._lanes, self.active)


Weights = Mapping[str, float]


def checked_weights(
    weights: Weights | Sequence[tuple[int, Weights]], names: list[str]
) -> list[tuple[int, list[Fraction]]]:
    """Return pairs (tokens of the run, weights in the order of `names`), ascending from 0.

    Raises:
        ConfigError: the weights have another type, name other sources, or cannot be shares.
    """
    try:
        pairs = [(0, weights)] if isinstance(weights, Mapping) else [(at, w) for at, w in weights]
        understood = all(
            isinstance(each, Mapping)
            and all(isinstance(weight, numbers.Real) for weight in each.values())
            for _, each in pairs
        )
    except (TypeError, ValueError):
        understood = False
    if not understood:
        raise ConfigError(
            f"weights must be a dict or a schedule of dicts, got {weights!r:.200}.",
            "Pass a dict of numbers by name, or pairs (tokens of the run, such a dict).",
            setting="weights",
        )
    positions = [whole_value(f"weights[{i}][0]", at) for i, (at, _) in enumerate(pairs)]
    if not positions or positions[0] != 0 or any(a >= b for a, b in pairwise(positions)):
        raise ConfigError(
            f"Weights must begin at 0 tokens of the run and ascend, got {positions}.",
            "Begin with (0, {...}), and name each later place once.",
            setting="weights",
        )
    return [(at, _weights(at, each, names)) for at, (_, each) in zip(positions, pairs, strict=True)]


def _weights(at: int, weights: Weights, names: list[str]) -> list[Fraction]:
    missing = [name for name in names if name not in weights]
    unknown = [name for name in weights if name not in names]
    if missing or unknown:
        raise ConfigError(
            f"The weights at {at} tokens "
            + " and ".join(
                f"{verb} {', '.join(wrong)}"
                for verb, wrong in (("lack", missing), ("also name", unknown))
                if wrong
            )
            + ".",
            "Give every source a weight, 0 for none.",
            setting="weights",
        )
    values = [weights[name] for name in names]
    if not all(math.isfinite(value) and value >= 0 for value in values) or not any(values):
        raise ConfigError(
            f"Weights must be finite, >= 0 and not all 0, got {dict(weights)} at {at} tokens.",
            "Correct the weight of each source.",
            setting="weights",
        )
    return [Fraction(value) for value in values]


#: Turns of all lanes for which changes are kept, so that a round can draw by their mean.
MEAN_TURNS = 32
#: Key of the changes in the state of a run: pairs of a batch and weights by name.
WEIGHTS = "weights"


class WeightChange(NamedTuple):
    """Weights of a mixture, in force from a given batch.

    Attributes:
        batch: index of a batch of the run: the first round of a lane that begins with it or with
            a later one draws by these weights, or by the mean of several changes.
        weights: weights by name of the source.
    """

    batch: int
    weights: dict[str, float]

    def shares(self, names: Sequence[str]) -> TokenShares:
        """Return the shares of these sources, constant over the run."""
        by_name = dict(zip(self.weights, _shares([*self.weights.values()]), strict=True))
        return TokenShares(((0, tuple(by_name.get(name, 0) for name in names)),))


def changes_of(values: Mapping[str, Any]) -> list[WeightChange]:
    """Return the changes in a state's values of leaves, in the order of their batches."""
    return [WeightChange(*change) for change in values.get(WEIGHTS, ())]


def change_at(changes: Sequence[WeightChange], batch: int) -> WeightChange | None:
    """Return the change in force from `batch` on; None keeps the mixture's own weights."""
    before = bisect_right(changes, batch, key=lambda change: change.batch)
    return changes[before - 1] if before else None


def mean_change(
    changes: Sequence[WeightChange], last: int | None, batch: int, lanes: int
) -> WeightChange | None:
    """Return the change by which a lane draws in a round that begins with `batch`.

    It is the mean of the changes after `last`, each weighted by the batches for which it held, so
    that weights that change faster than rounds begin are followed on average. Changes are kept for
    `MEAN_TURNS` turns of all lanes.

    Args:
        changes: changes of the run, in the order of their batches.
        last: batch of the change by which the lane has drawn so far; None if there was none.
        batch: index of the round's first batch in the run.
        lanes: number of lanes.
    """
    after = max(batch - MEAN_TURNS * lanes, -1 if last is None else last)
    low, high = (bisect_right(changes, at, key=lambda each: each.batch) for at in (after, batch))
    if high - low < 2:
        return change_at(changes, batch)
    within = changes[low:high]
    ends = [*(each.batch for each in within[1:]), batch + 1]
    parts = [  # fsum gives the same sums in every version of Python
        (end - each.batch) / math.fsum(each.weights.values())
        for each, end in zip(within, ends, strict=True)
    ]
    mean = {
        name: math.fsum(part * each.weights[name] for part, each in zip(parts, within, strict=True))
        for name in within[-1].weights
    }
    return WeightChange(within[-1].batch, mean)


def tempered(sizes: list[int], temperature: float) -> list[Fraction]:
    """Return weights in proportion to size ** (1 / temperature), the same on any machine.

    A float's power may differ in its last bit between C libraries; `Decimal`'s does not.
    """
    context = Context(prec=30)
    power = context.divide(Decimal(1), Decimal(temperature))
    largest = max(sizes)
    logs = [context.ln(context.divide(Decimal(size), Decimal(largest))) for size in sizes]
    return [Fraction(context.exp(context.multiply(log, power))) for log in logs]
