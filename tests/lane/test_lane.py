"""A lane delivers every token once, within its bounds, and resumes after any batch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.errors import StateError
from streampack.lane.lane import Lane
from streampack.packing import BestFitDecreasing, Concat, Packer, Seamless
from streampack.window.config import WindowConfig
from tests.support.drawn import drawn
from tests.support.lanes import (
    PACKERS,
    SEQ_LEN,
    assert_delivered,
    assert_equal,
    assert_lane_restores,
    composition_of,
    lane_config,
    run,
)
from tests.support.memory_source import heavy_tailed

by_name = {"ids": lambda value: type(value).__name__}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("packer", PACKERS, **by_name)
@pytest.mark.parametrize("lanes", [1, 3])
def test_every_token_is_delivered_exactly_once(packer: Packer, lanes: int) -> None:
    lengths = heavy_tailed(300, seed=1)
    config = lane_config(lengths, packer, lanes=lanes)
    batches = [batch for lane in range(lanes) for batch in run(Lane(config, lane))]
    assert_delivered(batches, sum(lengths))
    total = composition_of(batches)
    assert total.documents == len(lengths)
    assert (total.dropped, total.documents_lost) == (0, 0)
    repeats = isinstance(packer, Seamless) or packer == Concat(seq_len=SEQ_LEN, restart=True)
    assert (total.repeated > 0) == repeats
    assert total.slots == sum(len(batch.rows.tokens) for batch in batches)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("packer", PACKERS, **by_name)
def test_restoring_after_every_batch_gives_the_same_rest(packer: Packer) -> None:
    config = lane_config(heavy_tailed(160, seed=2), packer)
    batches = run(Lane(config, 0))
    assert len(batches) > 20
    assert_lane_restores(config, batches)


@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=60),
    st.sampled_from(PACKERS),
    st.integers(1, 3),
    st.integers(6, 12),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.integers(0, 3),
    st.integers(1, 8),
    st.booleans(),
)
@drawn(60)
def test_any_window_delivers_once_and_resumes_anywhere(
    lengths: list[int],
    packer: Packer,
    rows: int,
    window_rows: int,
    carry: float,
    max_carries: int,
    block_documents: int,
    shuffle: bool,
) -> None:
    config = lane_config(
        lengths,
        packer,
        rows=rows,
        window=WindowConfig(rows=window_rows, carry=carry, max_carries=max_carries),
        block_documents=block_documents,
        shuffle=shuffle,
        epochs=2,
    )
    batches = run(Lane(config, 0))
    assert_delivered(batches, sum(lengths), times=2)
    assert_lane_restores(config, batches, every=3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("packer", PACKERS, **by_name)
def test_a_document_longer_than_the_window_streams_through_it(packer: Packer) -> None:
    lengths = [5, 7, 40 * SEQ_LEN + 3, 9, 30, 11 * SEQ_LEN, 2]
    config = lane_config(lengths, packer, shuffle=False)
    batches = run(Lane(config, 0))
    assert_delivered(batches, sum(lengths))
    most = config.window.tokens(config.packer)
    assert all(batch.start.entries.held.sum() <= most for batch in batches)
    assert_lane_restores(config, batches)


@pytest.mark.parametrize("packer", [p for p in PACKERS if "overflow" in vars(p)], **by_name)
@pytest.mark.parametrize("overflow", ["truncate", "drop"])
def test_tokens_dropped_by_overflow_are_counted(packer: Packer, overflow: Any) -> None:
    lengths = [*heavy_tailed(100, seed=3), 5000, 8 * SEQ_LEN, SEQ_LEN + 1, SEQ_LEN]
    config = lane_config(lengths, replace(cast(Any, packer), overflow=overflow))
    batches = run(Lane(config, 0))
    long = [n for n in lengths if n > SEQ_LEN]
    dropped = sum(long) - (SEQ_LEN * len(long) if overflow == "truncate" else 0)
    total = composition_of(batches)
    assert total.dropped == dropped
    assert total.placed - total.repeated == sum(lengths) - dropped
    assert total.documents_cropped == len(long)
    assert total.documents_lost == (len(long) if overflow == "drop" else 0)


def test_the_window_stays_within_its_bounds_and_nobody_waits_too_long() -> None:
    window = WindowConfig(rows=20, documents=40, max_carries=3)
    packer = BestFitDecreasing(seq_len=SEQ_LEN)
    config = lane_config(heavy_tailed(2000, seed=4), packer, window=window)
    rounds = {batch.start.number: batch.start for batch in run(Lane(config, 0))}
    assert max(r.entries.held.sum() for r in rounds.values()) <= 20 * SEQ_LEN
    assert max(len(r.entries) for r in rounds.values()) <= 40 + 1
    assert max((r.number - r.entries.arrived).max() for r in rounds.values()) <= 3


def test_the_first_batch_needs_only_a_small_window() -> None:
    config = lane_config(
        heavy_tailed(2000, seed=5),
        BestFitDecreasing(seq_len=SEQ_LEN),
        window=WindowConfig(rows=64),
    )
    held = []
    for batch in run(Lane(config, 0)):
        if not held or batch.start.number == len(held):
            held.append(int(batch.start.entries.held.sum()))
    assert held[0] < 2 * SEQ_LEN + 2000
    assert max(held[:3]) < max(held[3:10])


def test_the_state_is_small_and_holds_no_tokens() -> None:
    lengths = [3] * 30_000
    config = lane_config(
        lengths,
        BestFitDecreasing(seq_len=2048),
        rows=2048 // SEQ_LEN,
        window=WindowConfig(rows=15, documents=10_000),
        block_documents=256,
    )
    batches = run(Lane(config, 0))
    assert max(len(batch.start.entries) for batch in batches) >= 9_000
    sizes = [len(json.dumps(batch.start.state(batch.emitted))) for batch in batches]
    assert max(sizes) < 16 * 1024


def test_another_number_of_epochs_is_refused_only_where_the_end_was_packed_already() -> None:
    packer = BestFitDecreasing(seq_len=SEQ_LEN)
    lengths = heavy_tailed(200, seed=8)
    batches = run(Lane(lane_config(lengths, packer), 0))
    longer = lane_config(lengths, packer, epochs=2)
    early = batches[10]
    assert_equal(run(Lane(longer, 0, early.start.state(early.emitted))), run(Lane(longer, 0))[11:])
    with pytest.raises(StateError):
        Lane(longer, 0, batches[-1].start.state(batches[-1].emitted))


def test_changed_documents_are_refused_on_resume() -> None:
    packer = BestFitDecreasing(seq_len=SEQ_LEN)
    lengths = heavy_tailed(200, seed=8)
    batch = run(Lane(lane_config(lengths, packer), 0))[10]
    state = batch.start.state(batch.emitted)
    changed = lane_config([n + 1 for n in lengths], packer)
    with pytest.raises(StateError):
        Lane(changed, 0, state)
    with pytest.raises(StateError):
        Lane(lane_config(lengths[:15], packer), 0, state)
    with pytest.raises(StateError):  # it is beyond the end of a shard
        Lane(lane_config(lengths[:12], packer), 0, state)


def test_the_same_seed_repeats_a_run_and_another_does_not() -> None:
    packer = BestFitDecreasing(seq_len=SEQ_LEN)
    lengths = heavy_tailed(200, seed=9)
    first, again = (run(Lane(lane_config(lengths, packer), 0)) for _ in range(2))
    assert_equal(first, again)
    other = run(Lane(lane_config(lengths, packer, seed=6), 0))
    assert not np.array_equal(first[0].rows.tokens, other[0].rows.tokens)
