"""The share of pairs that a limit of similarity leaves above it."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.documents.blocks import Documents
from streampack.ordering import SimilarityOrder
from streampack.ordering import above_limit as module
from streampack.ordering.above_limit import share_above
from streampack.ordering.traversal import Limit


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    row_tokens=st.integers(1, 120),
    similarity=st.sampled_from([0.2, 0.5, 0.8]),
    seed=st.integers(0, 99),
)
def test_the_share_is_counted_over_all_pairs_that_fit_into_a_row(
    lengths: list[int], row_tokens: int, similarity: float, seed: int
) -> None:
    vectors = np.random.default_rng(seed).random((len(lengths), 5)).astype(np.float32)
    pairs = [
        (i, j)
        for i in range(len(lengths))
        for j in range(i + 1, len(lengths))
        if sum(lengths[i : j + 1]) <= row_tokens
    ]
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    above = sum(bool(units[i] @ units[j] > similarity) for i, j in pairs)
    limit = Limit(similarity, 3, np.array(lengths), row_tokens)
    assert share_above(vectors, limit) == pytest.approx(above / max(len(pairs), 1))


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The module's own records: kernels that are compiled here log too."""
    return [record for record in caplog.records if record.name == module.__name__]


def test_a_window_of_documents_that_are_all_alike_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_first", lambda notice: True)
    alike = [(np.arange(100) + 7 * i).astype(np.uint32) for i in range(12)]
    apart = [(np.arange(100) + 1000 * i).astype(np.uint32) for i in range(12)]
    order = SimilarityOrder(duplicate_threshold=1, max_similarity=0.3, row_tokens=1200)
    with caplog.at_level(logging.WARNING):
        order.order(Documents.from_arrays(apart))
    assert not logged(caplog)
    with caplog.at_level(logging.WARNING):
        order.order(Documents.from_arrays(alike))
    (record,) = logged(caplog)
    assert "max_similarity" in record.getMessage()
