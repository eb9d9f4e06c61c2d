"""Decomposition: the pieces of documents against their binary digits, in plans and in a lane."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.decomposition import Decomposition
from streampack import WindowConfig
from streampack.lane.lane import Lane
from streampack.packers.curriculum import scheduled_buckets
from streampack.packing import check_plan
from tests.support.drawn import drawn
from tests.support.lanes import (
    SEQ_LEN,
    assert_lane_restores,
    composition_of,
    lane_config,
    real_tokens,
    run,
)
from tests.support.memory_source import heavy_tailed
from tests.support.plans import planned, rows_of, window_request

SEQ_LENS = (4, 8, 16, SEQ_LEN)
LENGTHS = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 200)), max_size=60)


def digits(length: int, seq_lens: tuple[int, ...]) -> list[int]:
    """The pieces of a document, longest first, its tail last."""
    pieces = []
    while length >= seq_lens[0]:
        pieces.append(max(size for size in seq_lens if size <= length))
        length -= pieces[-1]
    return [*pieces, length] if length else pieces


@given(LENGTHS, st.booleans())
@drawn(200)
def test_a_document_is_cut_into_the_powers_of_two_that_add_up_to_it(
    lengths: list[int], keep_tails: bool
) -> None:
    plan = planned(Decomposition(seq_lens=SEQ_LENS, keep_tails=keep_tails), lengths)
    rows = rows_of(plan)
    for document, length in enumerate(lengths):
        found = [(start, stop - start) for row in rows for d, start, stop in row if d == document]
        expected = digits(length, SEQ_LENS)
        if not keep_tails and expected and expected[-1] < SEQ_LENS[0]:
            assert plan.dropped[document] == expected.pop()
        assert [size for _, size in found] == expected
        assert [start for start, _ in found] == np.cumsum([0, *expected])[:-1].tolist()
    for seq_len, row in zip(plan.seq_len.tolist(), rows, strict=True):
        sizes = [stop - start for _, start, stop in row]
        assert sizes == [seq_len] or (seq_len == SEQ_LENS[0] and max(sizes) < seq_len)
    assert keep_tails or plan.metrics(np.array(lengths, dtype=np.int64)).padding == 0


@given(
    LENGTHS,
    st.lists(st.sampled_from([16, 16, 0]), min_size=60, max_size=60),
    st.booleans(),
    st.floats(0, 0.9),
    st.integers(0, 40),
    st.integers(0, 5),
)
@drawn(200)
def test_batches_follow_the_schedule_and_a_documents_rest_is_its_tail(
    lengths: list[int], waits: list[int], keep_tails: bool, carry: float, step: int, seed: int
) -> None:
    packer = Decomposition(seq_lens=SEQ_LENS, shares=(1, 2, 1, 1), keep_tails=keep_tails)
    left = np.array(waits[: len(lengths)], dtype=np.int64)
    found = packer.plan_window(
        window_request(
            lengths, seq_len=SEQ_LEN, rounds_left=left, carry=carry, step=step, seed=seed
        )
    )
    plan, sizes = found.plan, np.array(lengths, dtype=np.int64)
    reached = plan.dropped.copy()
    np.add.at(reached, plan.document, plan.stop - plan.start)
    check_plan(plan, reached)  # heads without gaps
    assert (reached[left == 0] == sizes[left == 0]).all()
    assert ((plan.dropped == 0) | (reached == sizes)).all()
    assert not keep_tails or not plan.dropped.any()
    turns = scheduled_buckets(packer._buckets.curriculum, 1, step, len(found.batches) - 1)
    for b, turn in enumerate(turns):
        rows = plan.seq_len[found.batches[b] : found.batches[b + 1]]
        assert set(rows.tolist()) == {SEQ_LENS[turn]}


@pytest.mark.parametrize("keep_tails", [True, False])
def test_a_lane_delivers_every_token_but_the_tails_that_are_dropped(keep_tails: bool) -> None:
    # The longest two are held in part.
    lengths = [*heavy_tailed(400, seed=1), 20 * SEQ_LEN + 7, 3, 50 * SEQ_LEN + 29]
    packer = Decomposition(seq_lens=SEQ_LENS, keep_tails=keep_tails)
    packer = packer.with_sample(np.array(lengths))
    batches = run(Lane(lane_config(lengths, packer, window=WindowConfig(rows=12)), 0))
    total = composition_of(batches)
    tails = 0 if keep_tails else sum(length % SEQ_LENS[0] for length in lengths)
    assert total.dropped == tails
    assert total.placed == sum(lengths) - tails
    tokens = real_tokens(batches)
    assert len(np.unique(tokens)) == len(tokens) == total.placed
    lost = 0 if keep_tails else sum(length < SEQ_LENS[0] for length in lengths)
    assert total.documents_lost == lost


def test_restoring_after_every_batch_gives_the_same_rest() -> None:
    packer = Decomposition(seq_lens=SEQ_LENS, shares=(1, 1, 2, 2), keep_tails=False)
    config = lane_config([*heavy_tailed(120, seed=2), 30 * SEQ_LEN + 5], packer)
    batches = run(Lane(config, 0))
    assert len(batches) > 20
    assert_lane_restores(config, batches)
