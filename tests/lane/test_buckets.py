"""Buckets online: the schedule's bucket at every step of every lane, every token once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig, sources
from streampack.errors import ConfigError, StateError
from streampack.lane.lane import Lane
from streampack.lane.state import LaneBatch
from streampack.packers.curriculum import scheduled_buckets
from streampack.packing import Balance, Buckets
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

SEQ_LENS = (8, 16, SEQ_LEN)
SEED = 5  # of `lane_config`
PACKER = Buckets(seq_lens=SEQ_LENS, shares=(0.3, 0.3, 0.4))


def seq_lens_of(batches: list[LaneBatch]) -> list[int]:
    return [batch.rows.seq_len for batch in batches]


def scheduled(packer: Buckets, count: int, seed: int = SEED) -> list[int]:
    turns = scheduled_buckets(packer.curriculum, seed, 0, count)
    return [packer.seq_lens[bucket] for bucket in turns]


@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=60),
    st.lists(st.integers(2, SEQ_LEN), min_size=1, max_size=4, unique=True).map(sorted),
    st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda shares: shares[0] > 0),
    st.integers(1, 3),
    st.integers(6, 12),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.integers(0, 3),
    st.integers(1, 8),
    st.sampled_from([None, "attention"]),
)
@drawn(60)
def test_any_window_delivers_once_on_schedule_and_resumes_anywhere(
    lengths: list[int],
    seq_lens: list[int],
    shares: list[float],
    rows: int,
    window_rows: int,
    carry: float,
    max_carries: int,
    block_documents: int,
    balance: Any,
) -> None:
    packer = Buckets(
        seq_lens=(*seq_lens, SEQ_LEN + 8),
        shares=shares[:1] * len(seq_lens) + [0.2],
        choice=balance and Balance(balance),
    )
    config = lane_config(
        lengths,
        packer,
        window=WindowConfig(rows=2 * window_rows, carry=carry, max_carries=max_carries),
        batch_tokens=rows * (SEQ_LEN + 8),
        block_documents=block_documents,
        epochs=2,
    )
    batches = run(Lane(config, 0))
    twice = np.repeat(np.arange(sum(lengths)), 2)
    np.testing.assert_array_equal(np.sort(real_tokens(batches)), twice)
    assert seq_lens_of(batches) == scheduled(packer, len(batches))
    assert all(batch.rows.composition.placed for batch in batches)
    assert_lane_restores(config, batches, every=3)


def test_all_lanes_have_the_same_bucket_at_the_same_step_to_their_ends() -> None:
    config = lane_config(heavy_tailed(600, seed=3), PACKER, lanes=3)
    runs = [run(Lane(config, lane)) for lane in range(3)]
    plan = scheduled(PACKER, max(map(len, runs)))
    for batches in runs:
        assert len(batches) > 30
        assert seq_lens_of(batches) == plan[: len(batches)]
        for batch in batches:
            assert batch.rows.composition.rows * batch.rows.seq_len == config.batch_tokens


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shares", [(0.3, 0.3, 0.4), (1, 0, 0), (0.8, 0.2, 0), (0, 0, 1)], ids=str)
def test_no_document_waits_beyond_the_age_limit_under_any_shares(shares: Any) -> None:
    window = WindowConfig(rows=20, documents=60, max_carries=3)
    packer = Buckets(seq_lens=SEQ_LENS, shares=shares)
    config = lane_config(heavy_tailed(2000, seed=4), packer, window=window)
    batches = run(Lane(config, 0))
    rounds = {batch.start.number: batch.start for batch in batches}
    assert max(r.entries.held.sum() for r in rounds.values()) <= 20 * SEQ_LEN
    assert max((r.number - r.entries.arrived).max() for r in rounds.values()) <= 3
    assert composition_of(batches).utilisation > 0.98


def test_documents_stay_whole_where_the_shares_are_the_corpuss_own() -> None:
    lengths = heavy_tailed(4000, seed=6, longest=SEQ_LEN)
    packer = Buckets(seq_lens=SEQ_LENS).with_sample(np.array(lengths))
    window = WindowConfig(rows=128)
    total = composition_of(run(Lane(lane_config(lengths, packer, window=window), 0)))
    assert total.truncation_ratio < 0.02
    assert total.utilisation > 0.98


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("lanes", "count"), [(4, 1500), pytest.param(8, 6000, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("cp", [(), (1, 2, 4)], ids=str)
def test_with_balance_the_lanes_attend_about_equally_in_a_step(
    cp: Any, lanes: int, count: int
) -> None:
    def slowest(balance: Any) -> float:
        packer = Buckets(seq_lens=SEQ_LENS, cp=cp, choice=balance and Balance(balance))
        packer = packer.with_sample(np.array(heavy_tailed(2000, seed=6)))
        costs = []
        for lane in range(lanes):
            lengths = heavy_tailed(count, seed=20 + lane)
            config = lane_config(lengths, packer, window=WindowConfig(rows=64))
            costs.append([batch.rows.sum_squared_lengths for batch in run(Lane(config, 0))])
        end = min(map(len, costs)) - 40
        together = np.array([own[40:end] for own in costs])
        return float(together.max(axis=0).sum() / together.mean(axis=0).sum())

    assert slowest("attention") - 1 < 0.6 * (slowest(None) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("balance", [None, "attention"])
def test_emitted_documents_have_the_inputs_length_distribution_throughout(balance: Any) -> None:
    lengths = heavy_tailed(12_000, seed=7, longest=SEQ_LEN)
    packer = Buckets(seq_lens=SEQ_LENS, choice=balance and Balance(balance)).with_sample(
        np.array(lengths)
    )
    config = lane_config(lengths, packer, window=WindowConfig(rows=64))
    ends = []
    for batch in run(Lane(config, 0)):
        assert batch.rows.provenance is not None
        index, start = batch.rows.provenance["index"], batch.rows.provenance["start"]
        shard = batch.rows.provenance["shard"]
        ends.append(np.array(lengths)[(shard * 4000 + index)[start == 0]])
    levels = np.arange(1, SEQ_LEN + 1)
    whole = (np.array(lengths)[:, None] <= levels).mean(axis=0)
    for tenth in np.array_split(np.concatenate(ends), 10):
        distance = np.abs((tenth[:, None] <= levels).mean(axis=0) - whole).max()
        assert distance < 0.05  # Kolmogorov-Smirnov; 1,200 samples exceed 0.047 once in a hundred


# ---------------------------------------------------------------------- datasets


def corpus(count: int = 400, seed: int = 9) -> list[list[int]]:
    return [[i % 250 + 1] * n for i, n in enumerate(heavy_tailed(count, seed=seed))]


def dataset(documents: Any, **changes: Any) -> PackedDataset:
    settings: dict[str, Any] = {
        "packer": Buckets(seq_lens=SEQ_LENS),
        "batch_size": 2,
        "window": WindowConfig(rows=12),
        "token_rules": TokenRules(eos_id=0),
        "lanes": 1,
        "topology": Topology(),
    }
    return PackedDataset(documents, **{**settings, **changes})


def test_shares_are_measured_once_and_kept_in_the_state() -> None:
    loader = PackedLoader(dataset(corpus()))
    batches = [next(iter(loader))]
    state = json.loads(json.dumps(loader.state_dict()))
    shares = state["fingerprint"]["packer"]["shares"]
    measured = Buckets(seq_lens=SEQ_LENS).with_sample(
        np.array([len(document) for document in corpus()])
    )
    assert shares == list(measured.shares)  # type: ignore[arg-type]
    batches += list(loader)
    again = dataset(corpus())
    again.load_state_dict(state)
    assert again.plan.fingerprint == state["fingerprint"]
    rest = list(PackedLoader(again))
    assert [b.seq_len for b in rest] == [b.seq_len for b in batches[1:]]
    for left, right in zip(rest, batches[1:], strict=True):
        assert left.input_ids.equal(right.input_ids)
        assert left.input_ids.shape == (2 * SEQ_LEN // left.seq_len, left.seq_len)
    with pytest.raises(StateError):
        dataset(corpus(), packer=PACKER).load_state_dict(state)


def test_a_source_that_can_be_read_only_once_needs_shares() -> None:
    def once() -> Any:
        yield from corpus(50)

    with pytest.raises(ConfigError):
        list(PackedLoader(dataset(sources.Iterable(once()))))
    packer = Buckets(seq_lens=SEQ_LENS, shares=(0.3, 0.3, 0.4))
    batches = list(PackedLoader(dataset(sources.Iterable(once()), packer=packer)))
    assert sum(b.composition.placed for b in batches) == sum(map(len, corpus(50)))
