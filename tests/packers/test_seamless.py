"""Seamless: both stages against the obvious implementation, and exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampack.packing import Seamless, check_plan
from tests.support import packing_reference as reference
from tests.support.drawn import drawn
from tests.support.plans import LENGTHS, planned, rows_of

SHARES = st.sampled_from([0, 0.1, 0.3, 0.5, 0.99, Fraction(1, 3)])


@given(LENGTHS, st.integers(2, 64), SHARES, st.booleans(), st.data())
@drawn(400)
def test_both_stages_equal_the_quadratic_ones(
    lengths: list[int], seq_len: int, share: Any, keep: bool, data: st.DataObject
) -> None:
    extra = data.draw(st.integers(0, min(seq_len - 1, 8)))
    packer = Seamless(seq_len=seq_len, max_repetition=share, extra_capacity=extra, keep_tails=keep)
    plan = planned(packer, lengths)
    rows, dropped = reference.seamless(
        lengths, seq_len, Fraction(str(share)), extra, keep_tails=keep
    )
    assert rows_of(plan) == rows
    assert plan.dropped.sum() == dropped
    assert (plan.row_fill()[:-1] == seq_len).all()
    assert not (keep and dropped)


@given(st.integers(1, 12), st.integers(1, 31), st.integers(0, 11))
@drawn(200)
def test_a_tail_from_any_row_on_is_cut_as_the_whole_document_is(
    whole: int, rest: int, row: int
) -> None:
    packer = Seamless(seq_len=32, extra_capacity=0)
    length = 32 * whole + rest
    plan = planned(packer, [length])
    if plan.num_rows == whole or row >= plan.num_rows:
        return
    tail = planned(packer, [length - int(plan.start[row])])
    np.testing.assert_array_equal(tail.start + plan.start[row], plan.start[row:])
    np.testing.assert_array_equal(tail.overlap[1:], plan.overlap[row + 1 :])


def test_the_limit_is_exact_where_floats_are_not() -> None:
    # 0.29 * 100 is 28.999999999999996 in floats; 171 tokens lack exactly 29 of two rows.
    packer = Seamless(seq_len=100, max_repetition=0.29, extra_capacity=0)
    assert planned(packer, [171]).overlap.tolist() == [0, 29]
    assert planned(packer, [170]).overlap.tolist() == [0, 0]


def test_a_document_of_ten_million_tokens_repeats_less_than_a_row() -> None:
    lengths = np.array([10_000_019, 10_000_000], dtype=np.int64)
    plan = Seamless(seq_len=2048).plan(lengths, final=True, seed=0)
    check_plan(plan, lengths)
    assert plan.num_rows == 2 * 4883
    assert plan.overlap.max() == 1


def test_bins_that_are_not_full_stay_rows_for_the_window_until_the_end() -> None:
    lengths = np.array([10, 9, 8, 7], dtype=np.int64)
    packer = Seamless(seq_len=16, extra_capacity=1)
    open_rows = packer.plan(lengths, final=False, seed=0)
    check_plan(open_rows, lengths)
    assert rows_of(open_rows) == [[(0, 0, 10), (3, 0, 6)], [(1, 0, 9), (2, 0, 7)]]
    lengths = np.array([10, 9, 8], dtype=np.int64)
    assert packer.plan(lengths, final=False, seed=0).row_fill().tolist() == [16, 10]
    lengths = np.array([12, 12, 12], dtype=np.int64)
    assert packer.plan(lengths, final=False, seed=0).row_fill().tolist() == [12, 12, 12]
    assert packer.plan(lengths, final=True, seed=0).row_fill().tolist() == [16, 16, 4]
