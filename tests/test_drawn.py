"""Tests look at few examples and cases in the gate, and at all of them at night."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import settings

from tests.support.drawn import GATE, NIGHT, covering, drawn, sampled, spread


@pytest.fixture(params=["gate", "night"])
def profile(request: pytest.FixtureRequest) -> Iterator[str]:
    before = settings.get_current_profile_name()
    settings.load_profile(request.param)
    yield request.param
    settings.load_profile(before)


def test_a_third_of_the_cases_is_looked_at_in_the_gate_with_every_lane_and_all_at_night(
    profile: str,
) -> None:
    cases = list(sampled(range(120)))
    assert cases[0] == 0
    if profile == "night":
        assert cases == list(range(120))
    else:
        assert 36 <= len(cases) <= 44
    for lanes in range(1, 9):
        assert {case % lanes for case in cases} == set(range(lanes))


def test_examples_are_few_in_the_gate_and_many_at_night(profile: str) -> None:
    most = {"gate": GATE, "night": NIGHT}[profile]
    assert drawn(100).max_examples == most
    assert drawn(2).max_examples == (16 if profile == "night" else 2)


def test_few_cases_are_spread_and_with_every_value_of_every_parameter() -> None:
    assert spread(9, 3) == {0, 3, 6}
    assert spread(2, 3) == {0, 1}
    cases = [[("format", each), ("packer", packer)] for each, packer in product("abcde", "xyz")]
    chosen = covering(cases)
    assert len(chosen) == 5
    assert {value for number in chosen for _, value in cases[number]} == {*"abcde", *"xyz"}
