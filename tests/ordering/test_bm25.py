"""BM25 vectors: scores of the textbook, the same everywhere, related documents together."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.documents.blocks import Documents
from streampack.ordering import BM25, SimilarityOrder
from streampack.ordering.bm25 import TermCounts, log2
from tests.support import ordering_reference as reference
from tests.support.drawn import drawn
from tests.support.topics import together, topical

IDS = st.lists(st.integers(0, 30) | st.integers(0, (1 << 32) - 1), max_size=40)


@given(
    st.lists(IDS, min_size=1, max_size=8).filter(lambda found: any(found)),
    st.sampled_from([0.0, 0.9, 1.2, 3.0]),
    st.sampled_from([0.0, 0.4, 0.75, 1.0]),
    st.sampled_from([1, 7, 64, 1 << 16]),
)
@drawn(150)
def test_vectors_match_the_reference(
    ids: list[list[int]], k1: float, b: float, dimension: int
) -> None:
    found = BM25(dimension=dimension, k1=k1, b=b)(
        Documents.from_arrays([np.array(some, dtype=np.uint32) for some in ids])
    )
    for vector, weights in zip(found, reference.bm25(ids, k1, b), strict=True):
        expected = np.zeros(dimension)
        for term, weight in weights.items():
            h = reference.mix(term)
            expected[h % dimension] += -weight if h >> 63 else weight
        length = np.linalg.norm(expected)
        if length > 1e-9:  # terms that cancel out leave rounding errors
            np.testing.assert_allclose(vector, expected * (4000 / length), atol=1.0)
        assert (vector.astype(np.int64) ** 2).sum() < 1 << 24


def test_a_cosine_is_the_score_divided_by_both_documents_own_scores() -> None:
    ids = [[1, 2, 2, 3], [2, 3, 4, 5, 5, 5], [1, 6], [7, 8]]
    vectors = BM25(dimension=1 << 16)(Documents.from_arrays(list(map(np.uint32, ids))))
    weights = reference.bm25(ids, 1.2, 0.75)

    def score(i: int, j: int) -> float:
        return sum(weights[i][term] * weights[j].get(term, 0.0) for term in weights[i])

    for i in range(4):
        for j in range(4):
            cosine = (
                vectors[i]
                @ vectors[j]
                / math.sqrt(float(vectors[i] @ vectors[i]) * float(vectors[j] @ vectors[j]))
            )
            expected = score(i, j) / math.sqrt(score(i, i) * score(j, j))
            assert cosine == pytest.approx(expected, abs=1e-3)


def test_logarithms_are_right_to_24_bits() -> None:
    ratios = np.concatenate([np.linspace(1, 3, 1001), 2.0 ** np.arange(40), [1e9 + 0.5]])
    error = np.log2(ratios) - log2(ratios)
    assert -1e-12 < error.min() <= error.max() < 2.0**-23


def test_vectors_are_the_same_on_every_machine_and_in_every_version() -> None:
    documents, _ = topical(50)
    digest = hashlib.sha256(BM25(dimension=256)(documents).astype("<i4").tobytes()).hexdigest()
    assert digest[:16] == "601867fedca072e5"


def test_counts_of_parts_add_up_and_weigh_like_the_whole() -> None:
    documents, _ = topical(60)
    whole, parts = TermCounts.of(documents), TermCounts.of(documents[:25])
    parts += TermCounts.of(documents[25:])
    assert (parts.total, parts.tokens) == (whole.total, whole.tokens) == (60, len(documents.tokens))
    np.testing.assert_array_equal(parts.terms, whole.terms)
    np.testing.assert_array_equal(parts.documents, whole.documents)
    np.testing.assert_array_equal(BM25()(documents[25:], parts), BM25()(documents)[25:])


def test_related_documents_follow_one_another_and_copies_are_dropped() -> None:
    documents, topic = topical(300)
    order = SimilarityOrder(embedder=BM25())
    assert order.exact
    assert order.describe()["embedder"] == "bm25-1-2048-1.2-0.75"
    assert together(topic, order.order(documents).order) > 0.8
    copies = [documents.document(i) for i in [*range(300), *range(40)]]
    assert order.order(Documents.from_arrays(copies)).dropped.tolist() == list(range(300, 340))
    assert order.order(documents[:0]).order.tolist() == []
    assert order.order(documents[:1]).order.tolist() == [0]
