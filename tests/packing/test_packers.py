"""Every packer against the oracle and against the obvious quadratic implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.errors import PlanError
from streampack.packing import (
    BestFitDecreasing,
    Concat,
    FirstFitDecreasing,
    Pad,
    Plan,
    check_plan,
)
from streampack.packing.fit import greedy_fit
from tests.support import packing_reference as reference
from tests.support.drawn import drawn
from tests.support.plans import LENGTHS, planned, rows_of

OVERFLOW = st.sampled_from(["split", "truncate", "drop"])


@given(LENGTHS, st.integers(2, 64), OVERFLOW, st.booleans(), st.booleans(), st.data())
@drawn(300)
def test_decreasing_packers_equal_the_quadratic_ones(
    lengths: list[int], seq_len: int, overflow: Any, best: bool, protect: bool, data: st.DataObject
) -> None:
    extra = data.draw(st.integers(0, min(seq_len - 1, 8)))
    kind = BestFitDecreasing if best else FirstFitDecreasing
    packer = kind(seq_len=seq_len, overflow=overflow, extra_capacity=extra, protect_short=protect)
    expected = reference.decreasing(
        lengths,
        seq_len,
        best=best,
        overflow=overflow,
        extra_capacity=extra,
        protect_short=protect,
    )
    assert rows_of(planned(packer, lengths)) == expected


@given(LENGTHS, st.integers(2, 64), OVERFLOW, st.integers(0, 3))
@drawn(200)
def test_concat_equals_the_quadratic_one_up_to_the_order_of_full_rows(
    lengths: list[int], seq_len: int, overflow: Any, seed: int
) -> None:
    rows = rows_of(planned(Concat(seq_len=seq_len, overflow=overflow), lengths, seed))
    expected = reference.concat(lengths, seq_len, overflow=overflow)
    assert sorted(rows) == sorted(expected)
    assert rows[-1:] == expected[-1:] or sum(limited(lengths, seq_len, overflow)) % seq_len == 0


def limited(lengths: list[int], seq_len: int, overflow: str) -> list[int]:
    return reference.limit(lengths, seq_len, overflow)


@given(LENGTHS, st.integers(2, 64), OVERFLOW, st.integers(0, 3))
@drawn(200)
def test_pad_equals_the_quadratic_one_up_to_order(
    lengths: list[int], seq_len: int, overflow: Any, seed: int
) -> None:
    plan = planned(Pad(seq_len=seq_len, overflow=overflow), lengths, seed)
    expected = reference.pad(lengths, seq_len, overflow=overflow)
    assert sorted(rows_of(plan)) == sorted(expected)
    inside = (
        plan.stop < np.array(limited(lengths, seq_len, overflow), dtype=np.int64)[plan.document]
    )
    assert (plan.insert_eos == inside).all()


@given(st.lists(st.integers(1, 6000), max_size=80), st.integers(6000, 9000), st.booleans())
@drawn(60)
def test_the_kernel_is_right_for_any_order_and_for_rooms_beyond_one_bitmap_group(
    sizes: list[int], capacity: int, best: bool
) -> None:
    bins, links = np.empty(len(sizes), dtype=np.int32), np.empty(2 * len(sizes), dtype=np.int32)
    memory = None if best else np.empty(len(sizes), dtype=np.int32)
    count = greedy_fit(np.array(sizes, dtype=np.int32), capacity, 0, 1, bins, links, memory)
    rooms: list[int] = []
    for size, chosen in zip(sizes, bins.tolist(), strict=True):
        fits = [(room if best else 0, b) for b, room in enumerate(rooms) if room >= size]
        expected = min(fits)[1] if fits else len(rooms)
        assert chosen == expected
        if not fits:
            rooms.append(capacity)
        rooms[chosen] -= size
    assert count == len(rooms)


def test_golden_plans_do_not_change_between_versions() -> None:
    lengths = [5, 20, 3, 8, 8, 1, 40, 7]
    assert rows_of(planned(BestFitDecreasing(seq_len=16), lengths)) == [
        [(1, 0, 16)],
        [(6, 0, 16)],
        [(6, 16, 32)],
        [(3, 0, 8), (4, 0, 8)],
        [(6, 32, 40), (7, 0, 7), (5, 0, 1)],
        [(0, 0, 5), (1, 16, 20), (2, 0, 3)],
    ]
    for packer, golden in ((Concat(seq_len=16), GOLDEN_CONCAT), (Pad(seq_len=16), GOLDEN_PAD)):
        assert [row[0] for row in rows_of(planned(packer, lengths, seed=1))] == golden


GOLDEN_CONCAT = [(3, 4, 8), (1, 11, 20), (6, 19, 35), (6, 3, 19), (0, 0, 5), (6, 35, 40)]
GOLDEN_PAD = [
    (6, 0, 15), (5, 0, 1), (3, 0, 8), (1, 0, 15), (0, 0, 5), (1, 15, 20),
    (4, 0, 8), (6, 15, 30), (2, 0, 3), (7, 0, 7), (6, 30, 40),
]  # fmt: skip


def broken(plan: Plan, **changes: Any) -> Plan:
    values = {name: getattr(plan, name) for name in Plan.__slots__}
    return Plan(**{**values, **changes})


def test_the_oracle_finds_every_planted_fault() -> None:
    lengths = np.array([5, 20, 3, 8], dtype=np.int64)
    plan = BestFitDecreasing(seq_len=16).plan(lengths, final=True, seed=0)
    check_plan(plan, lengths)
    faults: list[tuple[str, dict[str, Any]]] = [
        ("longer than its seq_len", {"seq_len": plan.seq_len - 1}),
        ("ends after its document", {"stop": plan.stop + 100}),
        ("is empty", {"stop": plan.start}),
        ("add up", {"dropped": plan.dropped + 1}),
        ("gap or an undeclared overlap", {"overlap": plan.overlap + (plan.start > 0)}),
        ("first token", {"start": plan.start + (plan.start == 0)}),
        ("does not exist", {"document": plan.document + 1}),
        ("padding is negative", {"pad_after": plan.pad_after - 1}),
        ("does not span", {"row_offsets": plan.row_offsets[:-1]}),
    ]
    for message, change in faults:
        with pytest.raises(PlanError, match=message):
            check_plan(broken(plan, **change), lengths)


def test_metrics_count_the_contents_of_rows() -> None:
    lengths = [5, 20, 3, 8, 0]
    metrics = planned(BestFitDecreasing(seq_len=16), lengths).metrics(np.array(lengths))
    assert metrics.placed == 36
    assert (metrics.rows, metrics.slots, metrics.padding) == (3, 48, 12)
    assert (metrics.documents, metrics.documents_cut, metrics.documents_lost) == (4, 1, 0)
    dropping = planned(BestFitDecreasing(seq_len=16, overflow="drop"), lengths)
    lost = dropping.metrics(np.array(lengths))
    assert (lost.dropped, lost.documents_lost, lost.documents_cropped) == (20, 1, 1)
