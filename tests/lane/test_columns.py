"""Columns of a lane's state as text: they come back, and are short."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from streampack.lane.state import decode_columns, encode_columns

NUMBERS = st.one_of(
    st.just(0), st.integers(0, 3), st.integers(0, 5000).map(lambda n: 2048 * n),
    st.integers(0, 1 << 45),
)  # fmt: skip


@given(arrays.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(0, 99)), elements=NUMBERS))
def test_any_columns_come_back(columns: np.ndarray) -> None:
    assert np.array_equal(decode_columns(encode_columns(columns), *columns.shape), columns)


def test_random_gaps_cost_little_more_than_their_entropy() -> None:
    places = np.sort(np.random.default_rng(0).choice(90_000, 10_000, replace=False))
    gaps = np.diff(places, prepend=-1)
    share = 1 / 9
    entropy = -90_000 * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    assert len(encode_columns(gaps[None])) * 6 < 1.25 * entropy
