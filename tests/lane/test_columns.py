"""Columns of a lane's state as text: they come back, are short, and are never trusted blindly."""

from __future__ import annotations

import base64
import tracemalloc
import zlib

import numpy as np
import pytest
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


def test_the_largest_sum_comes_back_and_a_larger_one_is_refused() -> None:
    columns = np.array([[0, 1 << 53, 0], [1, 1, 1]], dtype=np.int64)
    assert np.array_equal(decode_columns(encode_columns(columns), 2, 3), columns)
    with pytest.raises(ValueError, match="add up to more"):
        decode_columns(encode_columns(2 * columns), 2, 3)


def test_columns_of_equal_numbers_take_no_room() -> None:
    columns = np.repeat(np.array([[1], [2048], [0], [0], [0]], dtype=np.int64), 10_000, axis=1)
    assert len(encode_columns(columns)) < 256


def test_random_gaps_cost_little_more_than_their_entropy() -> None:
    places = np.sort(np.random.default_rng(0).choice(90_000, 10_000, replace=False))
    gaps = np.diff(places, prepend=-1)
    share = 1 / 9
    entropy = -90_000 * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    assert len(encode_columns(gaps[None])) * 6 < 1.25 * entropy


def refused(text: str, columns: int, count: int) -> bool:
    try:
        decode_columns(text, columns, count)
    except ValueError:
        return True
    return False


@given(arrays.arrays(np.int64, (3, 40), elements=st.integers(0, 255)), st.data())
def test_a_text_cut_off_or_continued_or_of_other_sizes_is_refused(
    columns: np.ndarray, data: st.DataObject
) -> None:
    packed = base64.b64decode(encode_columns(columns))
    cut_off = packed[: data.draw(st.integers(0, len(packed) - 1))]
    continued = packed + data.draw(st.binary(min_size=1, max_size=9))
    assert refused(base64.b64encode(cut_off).decode(), 3, 40)
    assert refused(base64.b64encode(continued).decode(), 3, 40)
    assert all(refused(encode_columns(columns), 3, count) for count in (0, 1, 39, 41))


@given(st.one_of(st.text(max_size=40), st.binary(max_size=40).map(base64.b64encode)))
def test_other_text_is_refused(text: str | bytes) -> None:
    assert refused(text if isinstance(text, str) else text.decode(), 5, 7)


@pytest.mark.parametrize("count", [0, 1, 1000, 1 << 52])
def test_nothing_is_unpacked_beyond_what_the_count_allows(count: int) -> None:
    unpacked = (1 << 26) + 1  # bytes; not five numbers of equally many bytes for each document
    bomb = base64.b64encode(zlib.compress(bytes(unpacked))).decode()
    allowed = min(5 * 7 * count, unpacked)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="does not unpack"):
            decode_columns(bomb, 5, count)
        assert tracemalloc.get_traced_memory()[1] < 3 * allowed + (1 << 20)
    finally:
        tracemalloc.stop()
