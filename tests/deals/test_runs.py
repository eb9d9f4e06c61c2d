"""Runs with dealt lanes: even ends, every token once, and states of bounded size.

That they give one sequence on any ranks and workers: `tests/run/test_one_sequence.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streampack import PackedDataset, PackedLoader, Topology, merge_states
from streampack.deals.report_channel import decode_reports
from streampack.errors import StateError
from streampack.run.plan import RunPlan
from streampack.sources import Iterable, Mixture
from tests.support.dealt_runs import (
    ALONE,
    LANES,
    MIXTURES,
    SOURCES,
    dealt,
    dealt_mixture,
    num_tokens,
    of_many_epochs,
    one_long_document,
)
from tests.support.drawn import drawn
from tests.support.forged import sign
from tests.support.memory_source import MemorySource
from tests.support.runs import PAD, identities, identity, in_order

TOKENS = num_tokens(ALONE)
MOST_BYTES = 2000  # of a lane's state, its window of some 20 documents included


def cut_once(**options: Any) -> PackedDataset:
    """A run of the same corpus with lanes that are not dealt."""
    found = dealt(**options)
    plan = RunPlan.of(replace(found.plan.config, dealing=None), Topology())
    found._continue_from(plan, plan.start())
    return found


def test_lanes_of_shards_that_differ_end_together() -> None:
    shares = {}
    for name, make in (("once", cut_once), ("dealt", dealt)):
        loader = PackedLoader(make())
        batches = list(loader)
        assert sum(batch.composition.placed for batch in batches) == TOKENS
        metrics = loader.metrics()
        assert metrics.empty_batches == 0  # one rank has steps of its own batches only
        lanes = [batch.lane for batch in batches]
        turns = max(lanes.count(lane) for lane in range(LANES))
        shares[name] = 1 - len(lanes) / (turns * LANES)
        assert metrics.utilisation < metrics.composition.utilisation + 1e-9
    assert shares["once"] > 0.1
    assert shares["dealt"] < 0.02
    reports = decode_reports(loader.state_dict()["lanes"]["0"]["reports"])
    assert len(reports) > 5, "hardly anything was dealt"


def test_the_last_epoch_alone_has_an_end() -> None:
    loader = PackedLoader(dealt(epochs=3))
    lanes = [batch.lane for batch in loader]
    assert loader.metrics().composition.placed == 3 * TOKENS
    turns = max(lanes.count(lane) for lane in range(LANES))
    assert len(lanes) > 0.99 * turns * LANES


def test_one_rank_gives_no_empty_batch_while_lanes_wait_for_a_long_document() -> None:
    loader = PackedLoader(one_long_document())
    assert all(batch.num_documents for batch in loader)
    assert loader.metrics().empty_batches == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MIXTURES)
def test_lanes_of_a_mixture_end_together(name: str) -> None:
    found, lanes = np.zeros(len(SOURCES), dtype=np.int64), []
    for batch in PackedLoader(dealt_mixture(name)):
        ids = batch.input_ids.numpy().reshape(-1)
        found += np.bincount(ids[ids != PAD] // 1_000_000, minlength=len(SOURCES))
        lanes.append(batch.lane)
    turns = max(lanes.count(lane) for lane in range(LANES))
    assert len(lanes) > 0.95 * turns * LANES  # of cutting once, below 0.9
    epochs = {"several epochs of one": {"books": 4}}.get(name, {})
    if name in ("by size", "by weights", "several epochs of one"):
        expected = [num_tokens(of) * epochs.get(part, 1) for part, of in SOURCES.items()]
        assert found.tolist() == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stop", [4, 480])
def test_a_second_epoch_added_on_the_way_gives_every_token_twice(stop: int) -> None:
    loader = PackedLoader(dealt_mixture("by size"))
    found = [batch.input_ids.numpy() for batch in islice(loader, stop)]
    longer = PackedLoader(dealt_mixture("by size", epochs=2))
    longer.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    found += [batch.input_ids.numpy() for batch in longer]
    ids = np.concatenate(found, axis=None)
    _, counts = np.unique(ids[ids != PAD], return_counts=True)
    assert len(counts) == sum(map(num_tokens, SOURCES.values()))
    assert (counts == 2).all()


def test_the_rest_of_an_ended_iterable_fills_batches() -> None:
    """However small its weight was beside the iterable, which is not dealt and may end any time."""
    first = Iterable(lambda lane, lanes: iter([[PAD + 1 + lane] * 20] * 20))
    web = MemorySource(SOURCES["web"], block_documents=16)
    mixture = Mixture({"first": first, "web": web}, weights={"first": 1, "web": 1e-4})
    tokens = [batch.num_tokens for batch in islice(PackedLoader(dealt(None, mixture)), 10_000)]
    assert sum(tokens) == num_tokens(SOURCES["web"]) + LANES * 20 * 20
    assert len(tokens) <= 1.1 * sum(tokens) / 64


@drawn(3, least=1)
@given(epochs=st.integers(5, 300), spread=st.sampled_from([0.0, 0.6]), seed=st.integers(0, 1 << 20))
def test_the_size_of_a_state_has_a_bound_for_any_number_of_epochs(
    epochs: int, spread: float, seed: int
) -> None:
    loader, lanes = PackedLoader(of_many_epochs(epochs, spread, seed)), [0, 0, 0]

    def largest() -> int:
        return max(len(json.dumps(state)) for state in loader.state_dict()["lanes"].values())

    for batch in loader:
        lanes[batch.lane] += 1
        if lanes[batch.lane] % 31 == 1:
            assert largest() < MOST_BYTES
    assert largest() < MOST_BYTES


@drawn(8, least=1)
@given(epochs=st.integers(5, 40), spread=st.sampled_from([0.0, 0.6]), seed=st.integers(0, 1 << 20))
@example(epochs=5, spread=0.6, seed=333)
@example(epochs=6, spread=0.6, seed=407568)
def test_no_lane_ends_before_the_batch_by_which_the_last_deal_gave_something(
    epochs: int, spread: float, seed: int
) -> None:
    """So the ends of lanes differ at most by the batches of the longest after that deal."""
    loader, ends = PackedLoader(of_many_epochs(epochs, spread, seed)), [0, 0, 0]
    for batch in loader:
        ends[batch.lane] = batch.step + 1
    state, rule = loader._run.state, loader._run.plan.config.dealing
    assert rule is not None
    sharing = state.sharing(connected=False)
    dealer = sharing.dealer(rule, sharing.exchange(rule), state.states())
    assert dealer is not None
    dealer.make(max(ends))
    assert dealer.is_over
    last = max(number for number in range(max(ends)) if dealer.gave(number, 0))
    assert rule.step(last) < min(ends)


def test_a_state_that_was_dealt_by_another_revision_of_the_rule_is_refused() -> None:
    loader = PackedLoader(dealt())
    next(iter(loader))
    state = loader.state_dict()
    state["fingerprint"]["dealing"]["revision"] = 1
    with pytest.raises(StateError, match=r"`dealing\.revision` was 1"):
        PackedLoader(dealt()).load_state_dict(sign(state))


def test_a_lane_that_goes_on_from_a_state_reports_for_each_deal_once() -> None:
    loader = PackedLoader(dealt())
    states = [loader.state_dict() for _ in islice(loader, 200)]
    again = PackedLoader(dealt())
    again.load_state_dict(states[150])
    assert [again.state_dict() for _ in islice(again, 49)] == states[151:]


def test_ranks_that_are_not_connected_run_the_lanes_of_others_too(caplog: Any) -> None:
    expected = [identity(batch) for batch in PackedLoader(dealt())]
    found, states = [], []
    for rank in range(2):
        loader = PackedLoader(dealt(Topology(rank, 2)))
        found.append([identity(batch) for batch in islice(loader, 150)])
        states.append(loader.state_dict())
    assert in_order(found) == expected[:300]
    assert "not connected with this process" in caplog.text
    own = PackedLoader(dealt(Topology(1, 2)))
    own.load_state_dict(states[1])
    with pytest.raises(StateError, match="merge_states"):
        list(own)
    rest: list[Any] = []
    for rank in range(2):
        loader = PackedLoader(dealt(Topology(rank, 2)))
        loader.load_state_dict(merge_states(states))
        rest += identities(loader)
    coming = [batch for batch in expected[300:] if set(batch[2]) != {PAD}]
    assert sorted(rest, key=lambda batch: (batch[1], batch[0])) == coming
