"""Columns of states as text: nothing is lost, little is written, and damage is noticed."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.lane.column_codec import LARGEST, decode_column, encode_column

decode_column(encode_column(np.ones(1, dtype=np.int64)), 1)  # compiled, for hypothesis' deadlines


@given(
    st.lists(
        st.one_of(
            st.just(0), st.integers(0, 3), st.integers(0, 5000).map(lambda n: 2048 * n),
            st.integers(0, 1 << 40),
        ),
        max_size=300,
    )
)  # fmt: skip
def test_any_column_comes_back(values: list[int]) -> None:
    column = np.array(values, dtype=np.int64)
    assert decode_column(encode_column(column), len(values)).tolist() == values


def test_the_largest_sum_comes_back_and_a_larger_one_is_refused() -> None:
    column = np.array([0, LARGEST, 0], dtype=np.int64)
    assert decode_column(encode_column(column), 3).tolist() == column.tolist()
    with pytest.raises(ValueError, match="no column"):
        decode_column(encode_column(column + 1), 3)


def test_a_column_of_zeros_is_empty_and_equal_values_cost_two_bits() -> None:
    assert encode_column(np.zeros(10_000, dtype=np.int64)) == ""
    rows = np.full(10_000, 2048, dtype=np.int64)
    assert len(encode_column(rows)) * 6 < 2.1 * 10_000


def test_random_gaps_cost_little_more_than_their_entropy() -> None:
    places = np.sort(np.random.default_rng(0).choice(90_000, 10_000, replace=False))
    gaps = np.diff(places, prepend=-1) - 1
    share = 1 / 9
    entropy = -90_000 * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    assert len(encode_column(gaps)) * 6 < 1.2 * entropy


@given(st.lists(st.integers(0, 9), max_size=50), st.data())
def test_damaged_columns_are_refused_or_of_the_right_size(
    values: list[int], data: st.DataObject
) -> None:
    text = encode_column(np.array(values, dtype=np.int64))
    kind = data.draw(st.sampled_from(["cut", "flip", "other"]))
    if kind == "cut":
        text = text[: data.draw(st.integers(0, len(text)))]
    elif kind == "flip" and text:
        at = data.draw(st.integers(0, len(text) - 1))
        text = text[:at] + data.draw(st.characters(min_codepoint=32)) + text[at + 1 :]
    else:
        text = base64.b64encode(data.draw(st.binary(max_size=40))).decode()
    try:
        assert len(decode_column(text, len(values))) == len(values)
    except ValueError:
        pass
