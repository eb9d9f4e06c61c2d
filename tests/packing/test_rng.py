"""Seeded randomness is the same on every machine and in every version."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampack.packing.rng import derive_seed, derive_seeds, permutation


def test_splitmix64_gives_its_published_first_output() -> None:
    assert derive_seed(0) == 0xE220A8397B1DCDAF


def test_permutations_are_pinned() -> None:
    assert permutation(6, 3).tolist() == [5, 0, 2, 4, 1, 3]


@given(st.integers(0, 300), st.integers(0, 2**64 - 1))
def test_a_permutation_holds_every_number_once(n: int, seed: int) -> None:
    assert sorted(permutation(n, seed).tolist()) == list(range(n))


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_many_seeds_at_once_equal_one_at_a_time(seed: int, keys: list[int]) -> None:
    many = derive_seeds(seed, np.array(keys, dtype=np.uint64))
    assert many.tolist() == [derive_seed(seed, key) for key in keys]
