"""The bucket schedule keeps every share within one rotation, at any time, from any seed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampack.packers.curriculum import scheduled_buckets
from streampack.packing import Curriculum
from tests.support.drawn import drawn

SHARES = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-4, 1), st.just(1.0)), min_size=1, max_size=6
).filter(lambda shares: sum(shares) > 0)


def due(curriculum: Curriculum, rotations: int) -> list[list[Fraction]]:
    """Exact cumulated shares of each bucket after each rotation, in plain rational arithmetic."""
    at, sums, whole, _ = curriculum.units()
    total = [Fraction(0)] * curriculum.num_buckets
    after = []
    for r in range(rotations):
        place = r % curriculum.repeat if curriculum.repeat else r
        k = max(k for k in range(len(at)) if at[k] <= place)
        row = sums[k].tolist()
        if k + 1 < len(at):
            gap, gone = at[k + 1] - at[k], place - at[k]
            row = [
                (a * (gap - gone) + b * gone) // gap
                for a, b in zip(sums[k].tolist(), sums[k + 1].tolist(), strict=True)
            ]
        total = [t + Fraction(row[b + 1] - row[b], whole) for b, t in enumerate(total)]
        after.append(total)
    return after


def assert_shares(curriculum: Curriculum, seed: int, rotations: int = 150) -> None:
    turns = scheduled_buckets(curriculum, seed, 0, rotations)
    given_turns = np.zeros(curriculum.num_buckets, dtype=int)
    for bucket, target in zip(turns, due(curriculum, rotations), strict=True):
        given_turns[bucket] += 1
        assert all(abs(n - t) < 1 for n, t in zip(given_turns, target, strict=True))


@given(SHARES, st.integers(0, 1000))
@drawn(120)
def test_every_share_is_within_one_rotation_of_its_target_at_any_time(
    shares: list[float], seed: int
) -> None:
    assert_shares(Curriculum.constant(shares), seed)


@given(
    st.integers(1, 5).flatmap(
        lambda buckets: st.lists(
            st.tuples(
                st.integers(1, 300),
                st.lists(
                    st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=buckets, max_size=buckets
                ).filter(any),
            ),
            min_size=1,
            max_size=5,
        )
    ),
    st.integers(0, 100),
    st.booleans(),
)
@drawn(150)
def test_shares_that_change_are_kept_as_well(
    stages: list[tuple[int, list[float]]], seed: int, repeats: bool
) -> None:
    at, knots = 0, []
    for gap, shares in stages:
        knots.append((at, tuple(shares)))
        at += gap
    assert_shares(Curriculum(tuple(knots), at if repeats else None), seed)


@given(SHARES, st.integers(0, 500), st.integers(0, 5000), st.integers(1, 50))
@drawn(50)
def test_a_rotations_bucket_does_not_depend_on_earlier_calls(
    shares: list[float], seed: int, first: int, count: int
) -> None:
    curriculum = Curriculum.constant(shares)
    whole = scheduled_buckets(curriculum, seed, 0, first + count)[first:]
    np.testing.assert_array_equal(scheduled_buckets(curriculum, seed, first, count), whole)
    ahead = scheduled_buckets(curriculum, seed, first, count + 100_000)
    np.testing.assert_array_equal(ahead[:count], whole)


def test_a_seed_changes_the_order_and_schedules_are_pinned() -> None:
    curriculum = Curriculum.constant((0.5, 0.3, 0.2))
    first, other = (scheduled_buckets(curriculum, seed, 0, 200) for seed in (0, 1))
    assert not np.array_equal(first, other)
    assert "".join(map(str, first[:30])) == GOLDEN_TURNS


GOLDEN_TURNS = "010201020101201002101002010201"


def test_a_warm_up_begins_short_and_ends_at_the_shares() -> None:
    curriculum = Curriculum.warm_up((0.4, 0.3, 0.2, 0.1), 300)
    turns = scheduled_buckets(curriculum, 5, 0, 1300)
    firsts = [int(np.argmax(turns == b)) for b in range(4)]
    assert firsts == sorted(firsts)
    assert (turns[:20] == 0).sum() >= 19
    assert 3 not in turns[:200]
    late = np.bincount(turns[300:], minlength=4) / 1000
    np.testing.assert_allclose(late, (0.4, 0.3, 0.2, 0.1), atol=0.003)


def test_a_curriculum_by_stages_can_step_and_repeat() -> None:
    curriculum = Curriculum(((0, (1, 0)), (9, (1, 0)), (10, (0, 1))), repeat=20)
    turns = scheduled_buckets(curriculum, 0, 0, 60)
    assert turns.tolist() == ([0] * 10 + [1] * 10) * 3
    assert Curriculum.from_description(curriculum.describe()) == curriculum
