"""The walk is the one that the description gives, and visits every document once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampack.ordering import find_neighbours, walk
from streampack.ordering.traversal import Limit, walk_runs
from tests.support import ordering_reference as reference
from tests.support.drawn import drawn


@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(0, 1 << 32),
)
@drawn(200)
def test_the_walk_matches_the_reference(
    count: int, k: int, levels: int, shortest: int, seed: int
) -> None:
    # Few levels of similarity, so that ties decide often.
    similarity = np.random.default_rng(seed).integers(0, levels, (count, count)) / levels
    similarity = np.maximum(similarity, similarity.T)
    _, _, nearest = reference.neighbours(similarity, k, 2.0)
    ids = np.full((count, k), -1, dtype=np.int64)
    for i, row in enumerate(nearest):
        ids[i, : len(row)] = row
    weights = np.take_along_axis(similarity, np.maximum(ids, 0), axis=1)
    found = walk(ids, weights, shortest_run=shortest)
    assert found.tolist() == reference.path(nearest, similarity, shortest)


@given(st.integers(2, 80), st.integers(1, 8), st.integers(0, 1 << 32))
@drawn(60)
def test_runs_begin_where_the_walk_restarts_and_dtypes_change_nothing(
    count: int, k: int, seed: int
) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)
    found = find_neighbours(vectors, k)
    similarity = found.similarity.astype(np.float32)
    path, starts = walk_runs(found.ids, similarity.astype(np.float64), shortest_run=1)
    small = walk_runs(found.ids.astype(np.int32), similarity, shortest_run=1)
    assert path.tolist() == small[0].tolist()
    assert starts.tolist() == small[1].tolist()
    edges = {(i, j) for i, row in enumerate(found.ids.tolist()) for j in row if j >= 0}
    edges |= {(j, i) for i, j in edges}
    torn = {p for p in range(1, count) if (path[p - 1], path[p]) not in edges}
    assert starts[0] == 0
    assert torn <= set(starts.tolist())
    merged, fewer = walk_runs(found.ids, found.similarity)
    assert sorted(merged.tolist()) == list(range(count))
    assert len(fewer) <= len(starts)


@given(
    st.integers(1, 30),
    st.integers(1, 4),
    st.integers(2, 8),
    st.integers(0, 8),
    st.integers(1, 60),
    st.integers(0, 1 << 32),
)
@drawn(200)
def test_the_walk_with_a_limit_matches_the_reference(
    count: int, k: int, levels: int, limit: int, row: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    similarity = rng.integers(0, levels, (count, count)) / levels
    similarity = np.maximum(similarity, similarity.T)
    lengths = rng.integers(0, 20, count)
    _, _, nearest = reference.neighbours(similarity, 3 * k, 2.0)
    ids = np.full((count, 3 * k), -1, dtype=np.int64)
    for i, near in enumerate(nearest):
        ids[i, : len(near)] = near
    weights = np.where(ids < 0, -2.0, np.take_along_axis(similarity, np.maximum(ids, 0), axis=1))
    found = walk(ids, weights, limit=Limit(limit / levels, k, lengths, row))
    expected = reference.limited_path(nearest, similarity, limit / levels, k, lengths.tolist(), row)
    assert found.tolist() == expected
