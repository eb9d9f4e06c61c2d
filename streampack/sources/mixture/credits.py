"""Which source of a mixture gives the next quantum: token shares, and who is due.

Steps, for every quantum (the few documents that are drawn from one source at a time):
  1. Each source has a credit: the tokens it should have given by now, less those it has given.
     Credits add up to zero.
  2. Eligible are the sources whose credit is not negative. Of them the one comes first whose
     deadline is: the time at which its credit would exceed the largest quantum drawn so far, if
     it went on as it does now. Ties go to the first.
  3. The quantum's tokens are counted once it is drawn: every source's credit grows by its share
     of them, and that of the source that gave them falls by all of them.

No source is ever more than one quantum ahead of its share or, as long as quanta are no larger
than earlier ones, more than one behind. (Always taking the largest credit, which is simpler, lets a
source of many fall behind by two.) Where a quantum's size is only known once it is read, no rule
can do better than its size. Arithmetic is on integers, the same on any machine.

Shares may change over the run, linearly between knots; the target is their integral.

Cost: some microseconds per quantum and source.

Source: J. Bennett, H. Zhang, "WF2Q: Worst-case Fair Weighted Fair Queueing" (1996), whose rule this
is, with an expected quantum in the place of a known packet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Balance", "TokenShares"]

ONE = 1 << 40  # the unit of shares: all of a knot's add up to it
CREDIT = 1 << 20  # credits count tokens in so many parts, so that they stay below 2**53


@dataclass(frozen=True, slots=True)
class TokenShares:
    """Shares of S sources as a function of the tokens of the run.

    Attributes:
        knots: pairs (tokens of the run, S shares in units of 2**-40 that add up to one), ascending
            from 0; linear in between, constant behind the last.
    """

    knots: tuple[tuple[int, tuple[int, ...]], ...]

    @classmethod
    def of_weights(cls, knots: Sequence[tuple[int, Sequence[float | Fraction]]]) -> TokenShares:
        """From weights that need not add up to one (finite, none negative, not all zero)."""
        return cls(tuple((at, _shares(weights)) for at, weights in knots))

    def rates(self, at: int, active: Sequence[bool]) -> list[int]:
        """S numbers, the shares at one moment among the active sources, to be compared.

        Those that are not active have 0. Where no active source has a share, the next knot counts
        at which one has; all 0 if there is none.
        """
        here = bisect_right(self.knots, at, key=lambda knot: knot[0]) - 1
        now = self._between(here, at, at + 1)
        for shares in (now, *(knot for _, knot in self.knots[here:])):
            among = [share if on else 0 for share, on in zip(shares, active, strict=True)]
            if any(among):
                return among
        return [0] * len(active)

    def integrals(self, start: int, stop: int) -> list[int]:
        """S numbers in proportion to what is due between two moments, start < stop."""
        due = [0] * len(self.knots[0][1])
        k = bisect_right(self.knots, start, key=lambda knot: knot[0]) - 1
        while start < stop:
            last = k + 1 == len(self.knots)
            end = stop if last else min(stop, self.knots[k + 1][0])
            for i, part in enumerate(self._between(k, start, end)):
                due[i] += part
            start, k = end, k + 1
        return due

    def _between(self, k: int, start: int, stop: int) -> list[int]:
        """Integrals from `start` to `stop`, both between knots k and k + 1 (or behind the last)."""
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


class Balance:
    """Credits of S sources in one lane.

    Args:
        shares: of the run.
        lanes: a lane that has drawn t tokens is where the run is at ``t * lanes``.
        tokens: drawn in the lane so far.
        quantum: the largest quantum so far, in tokens.
        credits: (S,) in units of 2**-20 tokens.
        active: (S,) False for sources that have ended.
    """

    def __init__(
        self,
        shares: TokenShares,
        lanes: int,
        *,
        tokens: int,
        quantum: int,
        credits: Sequence[int],
        active: Sequence[bool],
    ) -> None:
        self._shares = shares
        self._lanes = lanes
        self.tokens = tokens
        self.quantum = quantum
        self.credits = list(credits)
        self.active = list(active)
        # A source that was removed (it had ended) or damage must not upset the sum for ever.
        self._level(-sum(self.credits))

    def choose(self) -> int | None:
        """The source whose turn it is; None if none is left that has a share."""
        rates = self._rates()
        best: int | None = None
        for i, rate in enumerate(rates):
            credit = self.credits[i]
            if not self.active[i] or credit < 0 or (rate == 0 and credit == 0):
                continue
            if best is None or self._room(i) * rates[best] < self._room(best) * rate:
                best = i
        return best

    def _room(self, i: int) -> int:
        return max(self.quantum, 1) * CREDIT - self.credits[i]

    def draw(self, source: int, tokens: int) -> None:
        """Count a quantum of `tokens` from `source`."""
        lanes, credits = self._lanes, self.credits
        start, stop = self.tokens * lanes, (self.tokens + tokens) * lanes
        due = [
            part if on else 0
            for part, on in zip(self._shares.integrals(start, stop), self.active, strict=True)
        ]
        if not any(due):
            due = self._rates()
        total = sum(due) or 1
        for i, part in enumerate(due):
            credits[i] += tokens * CREDIT * part // total
        credits[source] -= sum(credits)  # its tokens, and what the divisions left over
        self.tokens += tokens
        self.quantum = max(self.quantum, tokens)

    def end(self, source: int) -> None:
        """Let go of a source that has no more; the others share its weight and its credit."""
        credit = self.credits[source]
        self.credits[source] = 0
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
        self.credits = [before + part for before, part in zip(self.credits, parts, strict=True)]

    def _rates(self) -> list[int]:
        return self._shares.rates(self.tokens * self._lanes, self.active)
