"""Bucket schedule: the bucket of each rotation, the same for all lanes and ranks.

Steps, for rotation r = 0, 1, ...:
  1. Each bucket's due grows by its share of rotation r; the shares add up to one.
  2. Turn j of a bucket (counted from 0) becomes available in the rotation in which its due first
     exceeds j. Its deadline is the rotation in which its due reaches j + 1.
  3. Buckets with an available turn are tried in an order drawn from the seed. The first that leaves
     room for all other turns before their deadlines gets the rotation. The bucket with the
     earliest deadline always qualifies.

So after any number of rotations a bucket had floor(due) or ceil(due) turns: it is within one
rotation of its share at any time, also while shares change. Arithmetic is on integers. The bucket
of a rotation is a pure function of (shares, seed, rotation): after a restore the schedule is
recomputed from its beginning.

Cost: a fraction of a microsecond per rotation, one byte of memory each.

Sources: R. Tijdeman, "The chairman assignment problem" (1980) states the problem; windows with
deadlines follow S. Baruah et al., "Proportionate progress" (1996). Shares that change are the
length curriculum of Pouransari et al., "Dataset Decomposition" (2024), and the warm-up of Li et
al., "The Stability-Efficiency Dilemma" (2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel, kernel_of
from streampack.arguments import is_number, whole_number, whole_value
from streampack.errors import ConfigError
from streampack.packing.rng import derive_seed, mix

FINEST = 1 << 32  # largest number of units per rotation; shares are counted in these units
HORIZON = 4096  # in rotations; later deadlines count as equal
FREEDOM = 64  # in rotations; a turn is drawn at random only this close to its deadline


class _Knots(NamedTuple):
    """The knots of a curriculum as integers.

    Attributes:
        at: (K,) int64 rotations; sums: (K, B + 1) int64, cumulative shares over the buckets.
        whole: units per rotation, the last of every knot's sums.
        repeat: period of the knots in rotations; 0 for no repetition.
    """

    at: NDArray[np.int64]
    sums: NDArray[np.int64]
    whole: int
    repeat: int


@dataclass(frozen=True)
class Curriculum:
    """Token shares of the buckets as a function of the rotation.

    Args:
        knots: pairs (rotation, one share per bucket), rotations ascending from 0. Shares are
            interpolated linearly between knots and constant after the last; every knot's shares
            are scaled to add up to 1. Two knots in consecutive rotations make a step.
        repeat: period in rotations after which the knots repeat; None for no repetition.
    """

    knots: tuple[tuple[int, tuple[float, ...]], ...]
    repeat: int | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(knot, Sequence) and len(knot) == 2 for knot in self.knots):
            raise ConfigError(
                f"knots must be pairs (rotation, shares), got {self.knots!r:.200}.",
                "Pass for example Curriculum(((0, (1, 0)), (1000, (0.5, 0.5)))).",
                setting="knots",
            )
        knots = tuple(
            (whole_value(f"knots[{i}][0]", at), plain_shares(shares))
            for i, (at, shares) in enumerate(self.knots)
        )
        object.__setattr__(self, "knots", knots)
        places = [at for at, _ in knots]
        if not places or places[0] != 0 or places != sorted(set(places)) or places[-1] >= 1 << 31:
            raise ConfigError(
                f"The rotations of knots must ascend from 0, below 2**31, got {places}.",
                "Begin with (0, shares) and list each later rotation once.",
                setting="knots",
            )
        width = len(knots[0][1])
        for at, shares in knots:
            valid = all(math.isfinite(share) and share >= 0 for share in shares)
            if len(shares) != width or not valid or not sum(shares) > 0:
                raise ConfigError(
                    f"Every knot must have {width} shares >= 0, not all of them 0, got {shares} at "
                    f"rotation {at}.",
                    f"Pass {width} shares, one for each bucket.",
                    setting="shares",
                )
        if self.repeat is not None:
            repeat = whole_number("repeat", self.repeat, least=places[-1] + 1)
            object.__setattr__(self, "repeat", repeat)

    @classmethod
    def constant(cls, shares: Sequence[float]) -> Curriculum:
        """Return a curriculum of shares that never change."""
        return cls(((0, tuple(shares)),))

    @classmethod
    def warm_up(cls, shares: Sequence[float], rotations: int) -> Curriculum:
        """Return a sequence-length warm-up, which introduces longer buckets one after another.

        At rotation 0 the first bucket with a share gets all tokens. The others join it at equal
        distances, until all have joined at `rotations`; the buckets present divide the tokens in
        proportion to their shares.
        """
        rotations = whole_value("rotations", rotations)
        present = [b for b, share in enumerate(shares) if share > 0]
        steps = max(len(present) - 1, 1)
        knots = {}
        for i, last in enumerate(present):
            some = [share if b <= last else 0.0 for b, share in enumerate(shares)]
            knots[i * rotations // steps] = tuple(some)
        return cls(tuple(knots.items()))

    @property
    def num_buckets(self) -> int:
        """Number of shares per knot."""
        return len(self.knots[0][1])

    def describe(self) -> dict[str, Any]:
        """Return the JSON-compatible identity for the fingerprint."""
        return {
            "knots": [[at, list(shares)] for at, shares in self.knots],
            "repeat": self.repeat,
        }

    @classmethod
    def from_description(cls, value: dict[str, Any]) -> Curriculum:
        """Rebuild a curriculum from the output of `describe`."""
        return cls(tuple((at, tuple(shares)) for at, shares in value["knots"]), value["repeat"])

    def units(self) -> _Knots:
        """Return the knots as integers.

        The unit makes shares of a few decimals exact, so that 0.4 of five rotations is two
        rotations.
        """
        at = np.array([at for at, _ in self.knots], dtype=np.int64)
        exact = []
        for _, shares in self.knots:
            running = list(accumulate(Fraction(repr(share)) for share in shares))
            exact.append([value / running[-1] for value in running])
        whole = math.lcm(*(value.denominator for values in exact for value in values))
        # Use its largest multiple, because shares between knots are rounded down to units.
        whole = FINEST // whole * whole if whole <= FINEST else FINEST
        sums = np.array([[0, *(round(value * whole) for value in values)] for values in exact])
        return _Knots(at, sums.astype(np.int64), whole, self.repeat or 0)


def plain_shares(shares: object) -> tuple[float, ...]:
    """Return constant shares as floats; raise `ConfigError` unless they are numbers."""
    listed = isinstance(shares, Iterable) and not isinstance(shares, Mapping)
    values = tuple(cast(Any, shares)) if listed else (None,)
    if not all(map(is_number, values)):
        raise ConfigError(
            f"shares must be a sequence of numbers or a Curriculum, got {shares!r}.",
            "Pass for example shares=(0.5, 0.25, 0.25), or leave it out to have them measured.",
            setting="shares",
        )
    return tuple(map(float, values))


def scheduled_buckets(
    curriculum: Curriculum, seed: int, first: int, count: int
) -> NDArray[np.int8]:
    """Return the bucket of `count` rotations from `first` on, (count,) int8.

    Args:
        curriculum: token shares of the buckets.
        seed: seed of the order in which buckets take turns.
    """
    rotations = max(1024, 1 << (first + count).bit_length())
    return _all_turns(curriculum, seed, rotations)[first : first + count]


@lru_cache(maxsize=16)
def _all_turns(curriculum: Curriculum, seed: int, rotations: int) -> NDArray[np.int8]:
    """Return (rotations,) int8 buckets; cached, so that the lanes of a process share the array."""
    return _take_turns(rotations, curriculum.units(), np.uint64(derive_seed(seed, 3)))


@kernel
def _share(r: int, b: int, knots: _Knots) -> int:
    """Return the share of bucket b in rotation r, in units; over b they add up to `knots.whole`."""
    at, sums, _, repeat = knots
    if repeat > 0:
        r %= repeat
    k = len(at) - 1
    while at[k] > r:
        k -= 1
    if k == len(at) - 1:
        return sums[k, b + 1] - sums[k, b]  # type: ignore[no-any-return]
    gap = at[k + 1] - at[k]
    after = r - at[k]
    # Sums over the buckets are interpolated, so that rounding down keeps the total.
    high = (sums[k, b + 1] * (gap - after) + sums[k + 1, b + 1] * after) // gap
    low = (sums[k, b] * (gap - after) + sums[k + 1, b] * after) // gap
    return high - low  # type: ignore[no-any-return]


@kernel_of(lambda rotations, knots, _: 20 * rotations * knots.sums.shape[1])
def _take_turns(rotations: int, knots: _Knots, seed: np.uint64) -> NDArray[np.int8]:
    """Return the bucket of each rotation, (rotations,) int8, by the steps of the module."""
    whole, buckets = knots.whole, knots.sums.shape[1] - 1
    turns = np.empty(rotations, dtype=np.int8)
    due = np.zeros(buckets, dtype=np.int64)
    turns_given = np.zeros(buckets, dtype=np.int64)
    seen = np.zeros(buckets, dtype=np.int64)  # due of each bucket after rotation next_seen - 1
    next_seen = np.zeros(buckets, dtype=np.int64)
    deadline = np.zeros(buckets, dtype=np.int64)
    key = np.zeros(buckets, dtype=np.uint64)
    for r in range(rotations):
        earliest = -1
        for b in range(buckets):
            due[b] += _share(r, b, knots)
            if turns_given[b] * whole >= due[b]:
                deadline[b] = -1  # its next turn is not available yet
                continue
            need = (turns_given[b] + 1) * whole
            while seen[b] < need and next_seen[b] <= r + HORIZON:
                seen[b] += _share(next_seen[b], b, knots)
                next_seen[b] += 1
            deadline[b] = next_seen[b] - 1 if seen[b] >= need else r + HORIZON
            key[b] = mix(seed + np.uint64(r * buckets + b + 1) * np.uint64(0x9E3779B97F4A7C15))
            if earliest < 0 or deadline[b] < deadline[earliest]:
                earliest = b
        chosen = earliest
        for b in range(buckets):
            if deadline[b] < 0 or deadline[b] > r + FREEDOM or b == chosen:
                continue
            better = key[b] < key[chosen]
            if better and _leaves_room(r, deadline[b], due, turns_given, knots):
                chosen = b
        turns[r] = chosen
        turns_given[chosen] += 1
    return turns


@kernel
def _leaves_room(
    r: int,
    deadline: int,
    due: NDArray[np.int64],
    taken: NDArray[np.int64],
    knots: _Knots,
) -> bool:
    """Return True if a turn with this deadline leaves room for all with earlier deadlines."""
    buckets = len(due)
    ahead = due.copy()
    for t in range(r, deadline):
        needed = 0
        for b in range(buckets):
            if t > r:
                ahead[b] += _share(t, b, knots)
            needed += max(ahead[b] // knots.whole - taken[b], 0)
        if needed > t - r:
            return False
    return True
