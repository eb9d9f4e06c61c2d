"""Neighbours and near-duplicates equal the result of comparing every pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.ordering import neighbours
from streampack.ordering.approximate import find_neighbours_approximately
from streampack.ordering.neighbours import find_neighbours
from tests.support import ordering_reference as reference
from tests.support.drawn import drawn

small_vectors = st.integers(1, 6).flatmap(
    lambda d: st.lists(
        st.lists(st.integers(-3, 3), min_size=d, max_size=d), min_size=1, max_size=24
    )
)


@given(small_vectors, st.integers(1, 5), st.sampled_from([(3, 10), (1, 2), (9, 10), (1, 1)]))
@drawn(150)
def test_whole_number_vectors_are_compared_exactly(
    vectors: list[list[int]], k: int, threshold: tuple[int, int]
) -> None:
    numerator, denominator = threshold
    similarity = [[reference.squared_cosine(a, b) for b in vectors] for a in vectors]
    limit = reference.Fraction(numerator**2, denominator**2)
    kept, duplicate_of, nearest = reference.neighbours(similarity, k, limit)
    found = find_neighbours(np.array(vectors, np.float32), k, numerator / denominator)
    assert found.kept.tolist() == kept
    assert found.duplicate_of.tolist() == duplicate_of
    assert [[j for j in row if j >= 0] for row in found.ids.tolist()] == nearest


@pytest.mark.parametrize("block", [1, 7, 256])
def test_float_vectors_in_any_block_size(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", block)
    vectors = np.random.default_rng(1).normal(size=(90, 12)).astype(np.float32)
    vectors[40] = vectors[3]
    vectors[70] = 2 * vectors[3]
    unit = vectors.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    cosines = (unit @ unit.T).round(11)  # copies are equally far from everything
    kept, duplicate_of, nearest = reference.neighbours(cosines, 10, 0.8)
    found = find_neighbours(vectors, 10, 0.8)
    assert found.kept.tolist() == kept
    assert found.duplicate_of.tolist() == duplicate_of
    assert duplicate_of[40] == duplicate_of[70] == 3
    assert found.ids.tolist() == nearest
    for a, row in enumerate(found.ids):
        np.testing.assert_allclose(
            found.similarity[a], cosines[kept[a]][found.kept[row]], atol=1e-10
        )


def test_ties_go_to_the_earlier_document_and_zero_vectors_to_nobody() -> None:
    vectors = np.array([[1, 0], [0, 1], [1, 1], [0, 1], [0, 0]], dtype=np.float32)
    found = find_neighbours(vectors, 2, 1.0)
    assert found.ids.tolist() == [[2, 1], [3, 2], [0, 1], [1, 2], [0, 1]]
    assert found.similarity[4].tolist() == [0, 0]


def test_faiss_finds_planted_duplicates_and_nearly_the_same_neighbours() -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(40, 16))
    vectors = (centres[rng.integers(0, 40, 2000)] + 0.5 * rng.normal(size=(2000, 16))).astype("f4")
    vectors[1500:1520] = vectors[20:40] * 3
    exact, found = (
        find_neighbours(vectors, 10, 0.999),
        find_neighbours_approximately(vectors, 10, 0.999),
    )
    assert found.duplicate_of[1500:1520].tolist() == list(range(20, 40))
    np.testing.assert_array_equal(found.kept, exact.kept)
    shared = [len(set(a) & set(b)) for a, b in zip(found.ids, exact.ids, strict=True)]
    assert np.mean(shared) > 9
    same = found.ids[:, 0] == exact.ids[:, 0]
    np.testing.assert_array_equal(found.similarity[same, 0], exact.similarity[same, 0])
