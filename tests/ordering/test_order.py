"""Orders: every kept document once, related ones together, near-duplicates found and counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streampack.documents.blocks import Documents
from streampack.ordering import HashedNgrams, SimilarityOrder, TextEmbedder, TokenEmbedder
from streampack.ordering.embedding import heads
from tests.support import ordering_reference as reference
from tests.support.topics import together, topical


def test_the_order_matches_the_reference() -> None:
    documents, _ = topical(80)
    vectors = [reference.hashed(documents.document(i).tolist(), 1024, 2) for i in range(80)]
    similarity = [[reference.squared_cosine(a, b) for b in vectors] for a in vectors]
    limit = reference.Fraction(1, 10) ** 2
    kept, _, nearest = reference.neighbours(similarity, 4, limit)
    assert 10 < len(kept) < 80
    among = [[similarity[a][b] for b in kept] for a in kept]
    order, dropped, _ = SimilarityOrder(k=4, duplicate_threshold=0.1).order(documents)
    assert order.tolist() == [kept[i] for i in reference.path(nearest, among)]
    assert dropped.tolist() == sorted(set(range(80)) - set(kept))


def test_related_documents_follow_one_another() -> None:
    documents, topic = topical()
    assert together(topic, SimilarityOrder().order(documents)[0]) > 0.8
    assert together(topic, np.arange(len(topic))) < 0.2


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_planted_near_duplicates_are_found_and_nothing_else(share: float) -> None:
    documents, _ = topical(300)
    rng = np.random.default_rng(5)
    planted = rng.choice(300, 40, replace=False)
    copies = []
    for i in planted:
        copy = documents.document(i).copy()
        change = rng.choice(len(copy), int(share * len(copy)), replace=False)
        copy[change] = rng.integers(0, 3000, len(change))
        copies.append(copy)
    both = Documents.from_arrays([documents.document(i) for i in range(300)] + copies)
    _, dropped, _ = SimilarityOrder().order(both)
    assert dropped.tolist() == list(range(300, 340))
    _, none, _ = SimilarityOrder(duplicate_threshold=1.0).order(both)
    assert len(none) == 0


def test_only_the_first_tokens_are_embedded() -> None:
    documents, _ = topical(30)
    cut = heads(documents[5:], 50)
    assert cut.lengths.tolist() == np.minimum(documents[5:].lengths, 50).tolist()
    for i in range(25):
        np.testing.assert_array_equal(cut.document(i), documents.document(i + 5)[:50])
    order = SimilarityOrder(first_tokens=50)
    np.testing.assert_array_equal(order.embed(documents[5:]), HashedNgrams()(cut))


def test_embedders_of_texts_and_of_tokens() -> None:
    documents, _ = topical(120)

    def model(texts: list[str]) -> list[list[float]]:
        words = [np.array([int(word) for word in text.split()]) for text in texts]
        return [np.bincount(w[w >= 5000] // 200, minlength=50).tolist() for w in words]

    def decode(ids: Any) -> list[str]:
        return [" ".join(map(str, some)) for some in ids]

    by_text = SimilarityOrder(embedder=TextEmbedder("topics", model, decode))
    by_token = SimilarityOrder(embedder=TokenEmbedder("topics", lambda d: model(decode(
        [d.document(i).tolist() for i in range(len(d))]
    ))))  # fmt: skip
    assert by_text.describe() == by_token.describe()
    assert not by_text.exact
    one, other = by_text.order(documents), by_token.order(documents)
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])
    plain = SimilarityOrder(embedder=lambda d: np.eye(len(d), dtype=np.float32))
    assert sorted(plain.order(documents)[0].tolist()) == list(range(120))


def test_no_documents_and_one() -> None:
    documents, _ = topical(1)
    assert SimilarityOrder().order(documents)[0].tolist() == [0]
    assert SimilarityOrder().order(documents[:0])[0].tolist() == []


def test_documents_above_the_limit_are_a_row_apart_and_the_rest_stays_related() -> None:
    documents, topic = topical(300)
    vectors = HashedNgrams()(heads(documents, 512)).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    limit = float(np.quantile(cosines[np.triu_indices(300, 1)], 0.99))
    free = SimilarityOrder(duplicate_threshold=1)
    limited = SimilarityOrder(duplicate_threshold=1, max_similarity=limit, row_tokens=1000)

    def sharing(path: Any) -> int:
        """Pairs above the limit that a row of 1,000 tokens may hold."""
        ends = np.cumsum(documents.lengths[path])
        starts = ends - documents.lengths[path]
        near = np.triu(starts[None, :] - ends[:, None] < 1000, 1)
        return int((cosines[np.ix_(path, path)] > limit + 1e-9)[near].sum())

    assert sharing(free.order(documents).order) > 50
    path = limited.order(documents).order
    assert sorted(path.tolist()) == list(range(300))
    assert sharing(path[:270]) == 0  # at the end nothing else may be left
    assert together(topic, path) > 2 * together(topic, np.arange(300))


def test_only_orders_with_a_limit_are_described_with_it() -> None:
    plain = SimilarityOrder().describe()
    assert SimilarityOrder(row_tokens=64).describe() == plain
    limited = SimilarityOrder(max_similarity=0.8).describe()
    assert limited == {**plain, "max_similarity": 0.8, "row_tokens": 8192}
