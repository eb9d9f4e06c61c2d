"""Concat with restart: a cut document is whole in the next row, online as offline."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampack import Concat, WindowConfig
from streampack.changes.rebuilding import plain, rebuild_packer
from streampack.forecasts.dry_run import stream_plan
from streampack.packing import Plan, check_plan
from tests.support import packing_reference as reference
from tests.support.drawn import drawn
from tests.support.plans import LENGTHS, planned, rows_of


@given(LENGTHS, st.integers(2, 64), st.integers(0, 3))
@drawn(300)
def test_rows_match_the_obvious_implementation(lengths: list[int], seq_len: int, seed: int) -> None:
    packer = Concat(seq_len=seq_len, restart=True)
    plan = planned(packer, lengths, seed)
    rows = reference.restarting(lengths, seq_len)
    assert sorted(rows_of(plan)) == sorted(rows)
    assert rows_of(plan)[-1:] == rows[-1:] or sum(len_of(rows[-1])) == seq_len
    assert plan.dropped.sum() == 0


def len_of(row: Any) -> list[int]:
    return [stop - start for _, start, stop in row]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=300),
    st.integers(1, 3),
    st.sampled_from([16, 60]),
    st.integers(0, 2),
)
@drawn(60)
def test_a_window_gives_the_same_rows(
    lengths: list[int], batch_size: int, window: int, long: int
) -> None:
    """Also of documents longer than the window."""
    lengths = lengths + [700] * long + lengths[::-1]
    array = np.array(lengths, dtype=np.int64)
    packer = Concat(seq_len=32, restart=True)
    config = WindowConfig(rows=window)
    plan: Plan = stream_plan(array, packer, config, batch_tokens=32 * batch_size, seed=1)
    check_plan(plan, array)
    assert sorted(rows_of(plan)) == sorted(reference.restarting(lengths, 32))


def test_a_packer_that_restarts_is_remade_from_its_description() -> None:
    packer = Concat(seq_len=16, restart=True)
    assert rebuild_packer(plain(packer.describe())) == packer
