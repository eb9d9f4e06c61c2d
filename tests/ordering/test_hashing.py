"""Hashed n-grams follow their description on every machine."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampack.documents.blocks import Documents
from streampack.ordering import HashedNgrams
from tests.support.ordering_reference import hashed

documents_of = Documents.from_arrays
GOLDEN_SMALL = [
    [0, 0, 3, 0, 0, 1, -1, 0],
    [0, -1, 1, 0, 0, 1, -1, -1],
    [0, 0, 0, 0, 0, -2, -3, 0],
    [0, 0, 0, 0, 0, 0, 0, 0],
]
GOLDEN_DIGEST = "a32a523f2572fbbb"


def block(documents: list[list[int]], dtype: Any = np.uint32) -> Documents:
    return documents_of([np.array(ids, dtype=dtype) for ids in documents])


@given(
    st.lists(st.lists(st.integers(0, 6), max_size=30), min_size=1, max_size=6),
    st.integers(1, 40),
    st.integers(1, 4),
)
def test_vectors_match_the_description(
    documents: list[list[int]], dimension: int, ngrams: int
) -> None:
    found = HashedNgrams(dimension=dimension, ngrams=ngrams)(block(documents))
    assert found.dtype == np.float32
    assert found.tolist() == [hashed(ids, dimension, ngrams) for ids in documents]


def test_golden_vectors() -> None:
    embed = HashedNgrams(dimension=8)
    found = embed(block([[1, 2, 3], [3, 2, 1], [7, 7, 7, 7], []])).astype(int).tolist()
    assert found == GOLDEN_SMALL
    tokens = (np.arange(2000, dtype=np.uint64) ** 2 * 2654435761 % 50257).astype(np.uint32)
    vectors = HashedNgrams()(documents_of(np.split(tokens, [10, 500, 1100])))
    digest = hashlib.blake2b(vectors.astype("<i2").tobytes(), digest_size=8).hexdigest()
    assert digest == GOLDEN_DIGEST


def test_a_document_does_not_depend_on_those_around_it() -> None:
    documents = [[1, 2, 3] * 50, [4], [1, 2, 3] * 50]
    together = HashedNgrams()(block(documents))
    for i, ids in enumerate(documents):
        np.testing.assert_array_equal(together[i], HashedNgrams()(block([ids]))[0])
