"""Credits: every source within one quantum of its share, whatever comes."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.mixtures.token_shares import ONE, PARTS_PER_TOKEN, Credits, TokenShares

weights = st.lists(st.sampled_from([0.0, 0.001, 0.1, 0.3, 1.0, 7.0]), min_size=1, max_size=10)


def credits_of(shares: TokenShares, lanes: int = 1) -> Credits:
    count = len(shares.knots[0][1])
    zeros, on = [0] * count, [True] * count
    return Credits(shares, lanes, tokens=0, quantum=0, amounts=zeros, active=on)


def target(knots: list[tuple[int, list[float]]], source: int, at: float) -> float:
    """Tokens of the run due to a source, by the trapezoid rule on ever smaller steps."""
    total = 0.0
    for (begin, before), (end, after) in zip(
        knots, [*knots[1:], (10**15, knots[-1][1])], strict=True
    ):
        if at <= begin:
            break
        a, b = before[source] / sum(before), after[source] / sum(after)
        x = min(at, end) - begin
        total += a * x + (b - a) * x * x / (2 * (end - begin))
    return total


@given(data=st.data(), lanes=st.integers(1, 7))
def test_every_source_is_within_one_quantum_of_its_target_at_any_time(
    data: st.DataObject, lanes: int
) -> None:
    first = data.draw(weights.filter(any))
    knots = [(0, first)]
    for _ in range(data.draw(st.integers(0, 3))):
        step = data.draw(st.integers(1, 3000))
        knot = data.draw(
            st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=len(first), max_size=len(first))
        )
        knots.append((knots[-1][0] + step, knot if any(knot) else first))
    mix = credits_of(TokenShares.of_weights(knots), lanes)
    largest = data.draw(st.integers(1, 100))
    drawn = [0] * len(first)
    # The largest quantum comes first: before it, nobody knows how large one is.
    for size in [largest, *data.draw(st.lists(st.integers(1, largest), max_size=120))]:
        source = mix.choose()
        assert source is not None
        mix.draw(source, size)
        drawn[source] += size
        assert sum(mix.amounts) == 0
        for i, got in enumerate(drawn):
            due = target(knots, i, mix.tokens * lanes) / lanes
            assert mix.amounts[i] / PARTS_PER_TOKEN == pytest.approx(due - got, abs=0.01)
            assert abs(due - got) <= largest + 0.01


def test_shares_add_up_to_one_exactly() -> None:
    for knot in ([0.1, 0.2, 0.7], [1, 1, 1], [1e-300, 1e300, 5]):
        assert sum(TokenShares.of_weights([(0, knot)]).knots[0][1]) == ONE


@given(places=st.lists(st.integers(1, 50), max_size=4), start=st.integers(0, 99), data=st.data())
def test_steps_follow_the_phases(places: list[int], start: int, data: st.DataObject) -> None:
    stop = data.draw(st.integers(start + 1, 300))
    begins = [0, *np.cumsum(places).tolist()]
    phases = [[k + 1, 3, len(begins) - k] for k in range(len(begins))]
    steps = TokenShares.of_weights(list(zip(begins, phases, strict=True))).in_steps()
    due = [0, 0, 0]
    for at in range(start, stop):
        shares = TokenShares.of_weights([(0, phases[bisect_right(begins, at) - 1])]).knots[0][1]
        assert steps.rates(at, [True] * 3) == list(shares)
        due = [sum(pair) for pair in zip(due, shares, strict=True)]
    assert steps.integrals(start, stop) == due


def test_when_a_source_ends_the_others_share_its_weight() -> None:
    mix = credits_of(TokenShares.of_weights([(0, [0.5, 0.3, 0.2])]))
    drawn = [0, 0, 0]

    def draw(times: int) -> None:
        for _ in range(times):
            source = mix.choose()
            assert source is not None
            mix.draw(source, 10)
            drawn[source] += 10

    draw(100)
    assert drawn == [500, 300, 200]
    mix.end(0)
    draw(100)
    assert drawn == [500, 900, 600]


def test_sources_without_a_share_now_take_over_at_the_next_knot_that_gives_them_one() -> None:
    mix = credits_of(TokenShares.of_weights([(0, [1, 0, 0]), (1000, [0, 1, 0]), (2000, [0, 0, 1])]))
    mix.end(0)
    assert mix.choose() == 1
    mix.end(1)
    assert mix.choose() == 2
    mix.end(2)
    assert mix.choose() is None


def test_a_source_without_any_share_is_never_drawn() -> None:
    mix = credits_of(TokenShares.of_weights([(0, [0, 1, 0])]))
    for _ in range(20):
        assert mix.choose() == 1
        mix.draw(1, 7)
    mix.end(1)
    assert mix.choose() is None
