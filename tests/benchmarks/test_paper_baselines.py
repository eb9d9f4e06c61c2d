"""The baselines in benchmarks/papers behave as the papers describe them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.bucket_pool import plan_pool
from benchmarks.papers.multi_bucket import plan_multi_bucket
from benchmarks.papers.orders import ClusterOrder, NeighbourOrder, RandomOrder
from streampack.packing import Buckets, Plan, check_plan
from tests.support import packing_reference as reference
from tests.support.drawn import drawn
from tests.support.plans import rows_of
from tests.support.topics import together, topical


def planned(lengths: list[int], seq_lens: tuple[int, ...], seed: int = 0) -> Plan:
    array = np.array(lengths, dtype=np.int64)
    plan = plan_multi_bucket(array, seq_lens, seed=seed)
    check_plan(plan, array)
    return plan


@given(
    st.lists(st.one_of(st.integers(0, 12), st.integers(0, 40), st.integers(0, 400)), max_size=60),
    st.lists(st.integers(2, 64), min_size=1, max_size=5, unique=True).map(
        lambda sizes: tuple(sorted(sizes))
    ),
    st.integers(0, 3),
)
@drawn(100)
def test_multi_bucket_concatenates_and_cuts_every_length_class_by_itself(
    lengths: list[int], seq_lens: tuple[int, ...], seed: int
) -> None:
    plan = planned(lengths, seq_lens, seed)
    rows = list(zip(plan.seq_len.tolist(), rows_of(plan), strict=True))
    expected = []
    for below, size in zip((0, *seq_lens), seq_lens, strict=False):
        above = np.inf if size == seq_lens[-1] else size
        own = [n if below < n <= above else 0 for n in lengths]
        expected += [(size, row) for row in reference.concat(own, size)]
    assert sorted(rows) == sorted(expected)
    assert [size for size, _ in rows] == [size for size, _ in expected]


@given(
    st.lists(st.one_of(st.integers(0, 12), st.integers(0, 40), st.integers(0, 400)), max_size=60),
    st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    st.integers(1, 70),
)
@drawn(100)
def test_a_pool_keeps_every_token_and_a_pool_of_all_documents_is_the_first_version(
    lengths: list[int], threshold: float, pool: int
) -> None:
    array, sizes = np.array(lengths, dtype=np.int64), (8, 16, 64)
    plan = plan_pool(array, sizes, threshold, pool)
    check_plan(plan, array)
    assert not plan.dropped.any()
    if pool >= np.count_nonzero(array):
        whole = Buckets(seq_lens=sizes, padding_threshold=threshold).plan(array, final=True, seed=0)
        assert rows_of(plan) == rows_of(whole)


# ------------------------------------------------------------------ orders


def test_orders_bring_related_documents_together_and_the_random_one_does_not() -> None:
    documents, topic = topical()
    assert together(topic, NeighbourOrder().order(documents)[0]) > 0.8
    assert together(topic, ClusterOrder().order(documents)[0]) > 0.3
    assert together(topic, RandomOrder().order(documents)[0]) < 0.2


@pytest.mark.parametrize(("order", "duplicates"), [(ClusterOrder(), 12), (RandomOrder(), 0)])
def test_every_document_comes_once_or_is_dropped(order: Any, duplicates: int) -> None:
    documents, _ = topical(100)
    again = documents.take(np.concatenate([np.arange(100), np.arange(0, 100, 9)]))
    found, dropped, *_ = order.order(again, seed=3)
    assert sorted([*found.tolist(), *dropped.tolist()]) == list(range(len(again)))
    assert len(dropped) == duplicates


def test_each_document_is_followed_by_its_neighbours() -> None:
    documents, _ = topical(50)
    order = NeighbourOrder(k=3)
    found, *_ = order.order(documents, seed=1)
    neighbours = order.neighbours(documents, order.embed(documents))
    groups = found.reshape(50, 4)
    assert sorted(groups[:, 0].tolist()) == list(range(50))
    np.testing.assert_array_equal(groups[:, 1:], neighbours.ids[groups[:, 0]])
