"""Near-duplicates are alike as a whole; a common beginning is not enough."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.documents.blocks import Documents
from streampack.ordering import HashedNgrams, SimilarityOrder, neighbours
from streampack.ordering.approximate import find_neighbours_approximately
from streampack.ordering.neighbours import Wholes, find_neighbours
from tests.support import ordering_reference as reference
from tests.support.drawn import drawn


def with_licence(count: int, seed: int = 0) -> list[np.ndarray]:
    """Documents of different contents that all begin with the same 600 tokens."""
    rng = np.random.default_rng(seed)
    licence = rng.integers(0, 500, 600)
    return [
        np.concatenate([licence, rng.integers(1000, 9000, rng.integers(500, 3000))]).astype("u4")
        for _ in range(count)
    ]


def test_a_shared_licence_makes_no_duplicate() -> None:
    arrays = with_licence(30)
    heads = find_neighbours(SimilarityOrder().embed(Documents.from_arrays(arrays)), 10, 0.95)
    assert len(heads.kept) == 1  # by their heads all of them are
    found = SimilarityOrder().order(Documents.from_arrays(arrays))
    assert sorted(found.order.tolist()) == list(range(30))
    found = SimilarityOrder().order(Documents.from_arrays(arrays + arrays[4:9]))
    assert found.dropped.tolist() == [30, 31, 32, 33, 34]
    assert found.like.tolist() == [4, 5, 6, 7, 8]


def test_an_approximate_search_compares_whole_documents_too() -> None:
    pytest.importorskip("faiss")
    arrays = with_licence(20)
    documents = Documents.from_arrays(arrays + arrays[:3])
    # So many equal heads that a few candidates would not hold the copies.
    vectors = SimilarityOrder().embed(documents)
    found = find_neighbours_approximately(vectors, 10, 0.95, Wholes(documents))
    assert found.duplicate_of.tolist() == [-1] * 20 + [0, 1, 2]


# No cosine of such short documents is any of these thresholds, where rounding would decide.
@given(st.integers(0, 1 << 32), st.sampled_from([0.31, 0.61, 0.91]), st.sampled_from([2, 7, 256]))
@drawn(40)
def test_duplicates_equal_a_comparison_of_heads_and_whole_documents(
    seed: int, threshold: float, block: int
) -> None:
    rng = np.random.default_rng(seed)
    heads = [rng.integers(0, 8, 6) for _ in range(4)]
    tails = [rng.integers(0, 8, rng.integers(0, 40)) for _ in range(4)]
    arrays = [
        np.concatenate([heads[rng.integers(4)], tails[rng.integers(4)]]).astype("u4")
        for _ in range(24)
    ]
    by_head = [reference.hashed(a[:6].tolist(), 64, 2) for a in arrays]
    by_whole = [reference.hashed(a.tolist(), 64, 2) for a in arrays]
    limit = reference.Fraction(threshold) ** 2
    near = [reference.squared_cosine(a, b) for a in by_head for b in by_head]
    whole = [reference.squared_cosine(a, b) for a in by_whole for b in by_whole]
    both = [[min(near[24 * i + j], whole[24 * i + j]) for j in range(24)] for i in range(24)]
    kept, duplicate_of, _ = reference.neighbours(both, 1, limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streampack.ordering.neighbours.BLOCK", block)
        order = SimilarityOrder(
            embedder=HashedNgrams(dimension=64), first_tokens=6, duplicate_threshold=threshold
        )
        documents = Documents.from_arrays(arrays)
        found = order.neighbours(documents, order.embed(documents))
    assert found.duplicate_of.tolist() == duplicate_of
    assert found.kept.tolist() == kept


def test_long_documents_are_embedded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "PIECE", 16)
    lengths = [0, 1, 15, 16, 17, 32, 33, 100]
    arrays = [np.arange(n, dtype="u4") % 7 for n in lengths]
    wholes = Wholes(Documents.from_arrays(arrays))
    wholes.embed(np.ones(8, dtype=np.bool_))
    for i, array in enumerate(arrays):
        parts = [array[p : p + 16].tolist() for p in range(0, len(array), 16)]
        expected = np.sum([reference.hashed(p, 1024, 2) for p in parts] or [[0] * 1024], axis=0)
        np.testing.assert_array_equal(wholes.made.vectors[wholes.made.row[i]], expected)
        assert wholes.made.norms[wholes.made.row[i]] == max((expected**2).sum(), 1)
