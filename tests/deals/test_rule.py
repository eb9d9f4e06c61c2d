"""Deals hand out every unit of every epoch once, and bring lanes to one level."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.deals.dealer import Dealer
from streampack.deals.report_exchange import MemoryExchange
from streampack.deals.rule import (
    FRACTION,
    LAG,
    UNENDING,
    DealRule,
    Line,
    LinePosition,
    Report,
    deal,
)
from streampack.workers.shared_exchange import SharedExchange


def _line(*, weight: int = 10_000, epochs: int = 1) -> Line:
    return Line(weight=weight, epochs=epochs, rate=1 << FRACTION)


def _rule(**changes: Any) -> DealRule:
    values = {"lanes": 4, "batch_tokens": 10, "every": 1, "reserve": 100, "lines": {"": _line()}}
    return DealRule(**{**values, **changes})


@given(
    lanes=st.integers(1, 9),
    weight=st.integers(1, 1 << 50),
    epochs=st.integers(1, 3),
    reserve=st.integers(1, 1 << 40),
    rate=st.integers(1, 1 << 30),
    seed=st.integers(0, 1 << 30),
)
def test_deals_give_every_part_of_every_epoch_to_one_lane(
    lanes: int, weight: int, epochs: int, reserve: int, rate: int, seed: int
) -> None:
    rule, line = _rule(lanes=lanes, reserve=reserve), _line(weight=weight, epochs=epochs)
    numbers = np.random.default_rng(seed)
    place, reached, given_by = LinePosition(0, 0), (0, 0), 0
    for number in range(400):
        left = numbers.integers(0, 2 * reserve, lanes) if number else np.zeros(lanes, np.int64)
        cuts, place = deal(rule, line, number, place, left, rate if number % 3 else 0)
        for cut in cuts:
            if reached[1] == weight:
                reached = (reached[0] + 1, 0)
            assert (cut.epoch, int(cut.bounds[0])) == reached
            assert (np.diff(cut.bounds) >= 0).all()
            assert len(cut.bounds) == lanes + 1
            reached = (cut.epoch, int(cut.bounds[-1]))
            given_by += reached[1] - int(cut.bounds[0])
    assert given_by == weight * epochs
    assert place.epoch == epochs or place == (epochs - 1, weight)


def test_a_deal_brings_lanes_to_one_level_as_far_as_it_goes() -> None:
    left = np.array([0, 50, 500, 90], dtype=np.int64)
    cuts, _ = deal(_rule(reserve=100), _line(), 1, LinePosition(0, 9_000), left, 1 << FRACTION)
    level = left + sum(np.diff(cut.bounds) for cut in cuts)
    assert level[2] == 500
    assert np.ptp(level[[0, 1, 3]]) <= 4  # a stripe is out by one at most
    assert level[0] >= 100
    rich = np.full(4, 100, dtype=np.int64)
    assert deal(_rule(reserve=100), _line(), 1, LinePosition(0, 9_000), rich, 1 << FRACTION) == (
        [],
        (0, 9_000),
    )


def test_a_late_deal_gives_every_lane_parts_from_several_places() -> None:
    left = np.zeros(4, dtype=np.int64)
    early, _ = deal(_rule(reserve=10), _line(), 1, LinePosition(0, 0), left, 1 << FRACTION)
    late, place = deal(_rule(reserve=10), _line(), 1, LinePosition(0, 9_500), left, 1 << FRACTION)
    assert (len(early), len(late)) == (1, 4)
    bounds = [int(bound) for cut in late for bound in cut.bounds[:-1]]
    assert [*bounds, place.at] == sorted([*bounds, place.at])
    assert {len(np.unique(np.diff(cut.bounds))) for cut in late} <= {1, 2}
    start = LinePosition(0, 9_500)
    alike, _ = deal(_rule(reserve=10), _line(), 1, start, left, 1 << FRACTION, alike=True)
    assert len(alike) == 1  # half of the remaining units, not a quarter
    assert alike[0].bounds[-1] - 9_500 == 2 * (place.at - 9_500)


@pytest.mark.parametrize(("most", "parts"), [(1000, 1), (1110, 1), (1300, 4)])
def test_lanes_that_found_the_same_get_one_part_of_a_late_deal(most: int, parts: int) -> None:
    rule = _rule(lanes=2, reserve=10, lines={"": _line(weight=400)})
    exchange = MemoryExchange(2, 1)
    dealer = Dealer(rule, exchange)
    dealer.make(1)
    for lane, found in enumerate((1000, most)):
        exchange.put(1, lane, 0, Report(until=2000, ahead=0, found=found))
    dealer.make(2)
    assert dealer.count("", 2) - dealer.count("", 1) == parts


def test_late_deals_give_a_quarter_of_the_rest_until_an_interval_would_remain() -> None:
    rule, place, left = _rule(every=2), LinePosition(0, 9_000), np.full(4, 99, dtype=np.int64)
    interval = 4 * 2 * 10  # tokens that the lanes pack from deal to deal
    while 4 * (10_000 - place.at) >= 4 * interval + 10_000 - place.at:
        _, following = deal(rule, _line(), 1, place, left, 1 << FRACTION)
        assert abs((following.at - place.at) - (10_000 - place.at) // 4) <= 4
        place = following
    assert place.at > 9_800
    assert deal(rule, _line(), 1, place, left, 1 << FRACTION)[1] == (1, 0)


def test_a_deal_leaves_no_lane_with_less_than_three_quarters_of_its_reserve() -> None:
    left = np.array([0, 10, 90, 200], dtype=np.int64)
    cuts, _ = deal(_rule(), _line(), 1, LinePosition(0, 9_750), left, 1 << FRACTION)
    parts = sum(np.diff(cut.bounds) for cut in cuts)
    assert (left + parts)[:2].min() >= 75 - len(cuts)
    assert parts.sum() == 75 + 65


def test_a_deal_gives_something_however_long_a_document_may_be() -> None:
    line = Line(weight=8, epochs=1, rate=10**6 << FRACTION)  # a document weighs 1
    place = LinePosition(0, 5)
    cuts, after = deal(_rule(), line, 3, place, np.zeros(4, dtype=np.int64), line.rate)
    assert cuts
    assert after > place


def test_a_deal_of_an_endless_run_ends_without_reported_tokens() -> None:
    line = Line(weight=8, epochs=UNENDING, rate=1)
    cuts, after = deal(_rule(), line, 3, LinePosition(0, 5), np.zeros(4, dtype=np.int64), 0)
    assert [(cut.epoch, *cut.bounds[[0, -1]].tolist()) for cut in cuts] == [(0, 5, 8), (1, 0, 5)]
    assert after == (1, 5)


@pytest.mark.parametrize("until", [0, 1, 1 << 20, 1 << 52])
@pytest.mark.parametrize("tokens", [0, 1, 1 << 46, (1 << 53) - 1])
def test_deals_give_the_line_once_under_any_reports(until: int, tokens: int) -> None:
    weight, lanes = 1 << 40, 4
    exchange = MemoryExchange(lanes, 1)
    dealer = Dealer(_rule(lanes=lanes, lines={"": _line(weight=weight)}), exchange)
    for number in range(1, 300):
        for lane in range(lanes):
            exchange.put(number, lane, 0, Report(until, lane, tokens))
    exchange.put(300, 0, 0, Report(0, tokens, 0))
    for lane in range(lanes):
        exchange.end(lane, 300)
    spans = sorted(span for lane in range(lanes) for span in dealer.spans("", lane, 400))
    ends = [0, *(span.high for span in spans)]
    assert [span.low for span in spans] == ends[:-1]
    assert 0 < ends[-1] <= weight


def test_a_round_knows_a_deal_only_once_all_lanes_are_through_with_its_batch() -> None:
    for every in (1, 2, 7):
        rule = _rule(every=every)
        for step in range(60):
            last = rule.known(step) - 1
            assert last == 0 or last * every + LAG <= step
            assert (last + 1) * every + LAG > step
    assert list(_rule(every=3).due(0, 7)) == [1, 2]
    assert list(_rule(every=3).due(6, 9)) == [2]


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_every_process_makes_the_same_deals_and_a_saved_lane_leaves_out_empty_ones(
    kind: str,
) -> None:
    rule = _rule(reserve=1_000, lines={"": _line(weight=100_000)})
    name = f"streampack-test-{uuid.uuid4().hex}"
    exchanges = (
        [MemoryExchange(4, 1), MemoryExchange(4, 1)]
        if kind == "memory"
        else [SharedExchange(4, 1, name), SharedExchange(4, 1, name)]
    )
    dealers = [Dealer(rule, exchange) for exchange in exchanges]
    for lane in range(4):
        for exchange in exchanges if kind == "memory" else [exchanges[lane % 2]]:
            exchange.put(1, lane, 0, Report(100, 500, 510))  # more than the reserve
            exchange.put(2, lane, 0, Report(6_250, lane, 6_250))
    assert dealers[0].spans("", 3, 3) == dealers[1].spans("", 3, 3)
    assert not dealers[0].gave(1, 0)
    assert dealers[0].gave(2, 0)
    again = Dealer(rule, MemoryExchange(4, 1))
    for lane in range(4):  # some remember the deal that gave nothing, one does not
        reports = [[1, 0, 100, 500, 510], [2, 0, 6_250, lane, 6_250]]
        if not lane:
            del reports[0]
        again.exchange.load(lane, reports, 2)
    assert [again.spans("", lane, 3) for lane in range(4)] == [
        dealers[0].spans("", lane, 3) for lane in range(4)
    ]
    for exchange in exchanges:
        exchange.close()
