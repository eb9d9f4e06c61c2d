"""Weights that change while a run goes on: one sequence of batches, and the shares asked for."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from streampack import (
    PackedDataset,
    PackedLoader,
    SimilarityOrder,
    Topology,
    WindowConfig,
    merge_states,
)
from streampack.errors import ConfigError, RankError, StateError, WorkerError
from streampack.mixtures.token_shares import WeightChange, change_at, mean_change
from streampack.packing import BestFitDecreasing, Buckets, Concat
from streampack.testing import SimulatedRanks
from tests.support.dealt_runs import NAMES, SHORT_SOURCES, dealt_mixture, endless
from tests.support.drawn import drawn
from tests.support.runs import PAD, child_processes, identity
from tests.support.simulated_ranks import on_ranks

Changes = Mapping[int, list[tuple[dict[str, float], int | None]]]
"""By the number of the batch that comes next: weights, and the batch from which they hold."""


def with_changes(
    make: Any, changes: Changes, legs: list[tuple[int, int, int]], *, total: int
) -> list[Any]:
    """The batches of a run, stopped after each leg of (ranks, workers, steps), up to `total`.

    Changes are asked for once the first step is over that reaches their number.
    """
    state: str | None = None
    found: list[Any] = []
    asked: set[int] = set()
    for ranks, workers, steps in legs:

        def one(rank: int, member: Any, world: int = ranks, procs: int = workers) -> Any:
            loader = PackedLoader(make(Topology(rank, world)), num_workers=procs, ranks=member)
            if state is not None:  # noqa: B023
                loader.load_state_dict(json.loads(state))  # noqa: B023
            done, batches, began = set(asked), [], len(found)  # noqa: B023

            def ask(after: int) -> None:
                for at in sorted(set(changes) - done):
                    if began + world * after >= at:
                        done.add(at)
                        for weights, batch in changes[at]:
                            step = loader._run.steps_taken
                            first = loader._run.state.next_batch
                            later = None if batch is None else step + (batch - first) // world
                            loader.set_weights(weights, from_step=later)

            ask(0)
            for number, batch in enumerate(islice(loader, steps)):  # noqa: B023
                batches.append(identity(batch))
                ask(number + 1)
            return batches, loader.state_dict(), done

        results = on_ranks(ranks, one)
        found += [
            batch for step in zip(*(own for own, _, _ in results), strict=True) for batch in step
        ]
        asked |= results[0][2]
        state = json.dumps(merge_states([saved for _, saved, _ in results]))
        if len(found) >= total:
            break
    return found[:total]


some_weights = st.fixed_dictionaries(
    {name: st.sampled_from([0.0, 0.1, 0.3, 1.0, 7.0]) for name in NAMES}
).filter(lambda weights: any(weights.values()))


@drawn(12, least=2)
@given(data=st.data())
def test_changes_kills_and_ranks_give_the_batches_of_an_uninterrupted_run(
    data: st.DataObject,
) -> None:
    """Every leg has two, three or six ranks, so places that six divide are the ends of steps."""
    places = st.integers(0, 15).map(lambda at: 6 * at)
    changes = {}
    for at in data.draw(st.lists(places, min_size=1, max_size=5, unique=True)):
        later = st.sampled_from(range(at, at + 60, 6))
        change = st.tuples(some_weights, st.none() | later)
        changes[at] = data.draw(st.lists(change, min_size=1, max_size=2))
    legs = data.draw(
        st.lists(
            st.sampled_from([1, 2, 3, 6]).flatmap(
                lambda ranks: st.integers(1, 9).map(lambda n: (ranks, 0, n * 6 // ranks))
            ),
            max_size=8,
        )
    )
    expected = with_changes(endless, changes, [(1, 0, 126)], total=126)
    assert with_changes(endless, changes, [*legs, (2, 0, 63)], total=126) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_and_stops_do_not_move_a_change(workers: int) -> None:
    changes: Changes = {
        60: [({"a": 8, "b": 1, "c": 1}, None), ({"a": 0, "b": 1, "c": 0}, 150)],
        120: [({"a": 1, "b": 1, "c": 8}, None)],
    }
    expected = with_changes(endless, changes, [(1, 0, 240)], total=240)
    legs = [(1, workers, 66), (1, workers, 90), (1, workers, 90)]
    assert with_changes(endless, changes, legs, total=240) == expected
    # Nor does it matter when they are asked for.
    first, second, third = changes[60][0][0], changes[60][1][0], changes[120][0][0]
    early: Changes = {0: [(second, 150), (third, 180), (first, 120)]}  # ten turns of six lanes
    assert with_changes(endless, early, [(1, workers, 240)], total=240) == expected
    assert with_changes(endless, {}, [(1, 0, 240)], total=240)[:60] == expected[:60]
    assert with_changes(endless, {}, [(1, 0, 240)], total=240) != expected


def test_a_change_of_the_next_step_reaches_workers_that_are_ahead_of_it() -> None:
    changes: Changes = {
        at: [({"a": 1, "b": 0, "c": 0} if at % 60 else {"a": 0, "b": 1, "c": 9}, at)]
        for at in (30, 60, 90)
    }
    expected = with_changes(endless, changes, [(1, 0, 150)], total=150)
    assert with_changes(endless, changes, [(1, 2, 150)], total=150) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["by weights", "several epochs of one", "with an endless one"])
def test_a_finite_run_gives_every_document_once_under_any_weights(name: str) -> None:
    changes: Changes = {
        48: [({"web": 1, "code": 8, "books": 0}, 88)],
        120: [({"web": 8, "code": 1, "books": 3}, 168)],
    }

    def make(topology: Topology | None = None) -> PackedDataset:
        return dealt_mixture(name, topology, SHORT_SOURCES)

    def run(legs: list[tuple[int, int, int]]) -> list[Any]:
        found = with_changes(make, changes, legs, total=100_000)
        return [one for one in found if set(one[2]) != {PAD}]

    expected = run([(1, 0, 10_000)])
    assert run([(2, 0, 30), (1, 2, 80), (4, 0, 10_000)]) == expected
    tokens = np.concatenate([one[2] for one in expected])
    unchanged = np.concatenate([np.ravel(batch.input_ids) for batch in PackedLoader(make())])
    if name != "with an endless one":  # of which more or less is read
        assert sorted(tokens[tokens < PAD]) == sorted(unchanged[unchanged < PAD])


def test_shares_of_an_interval_are_those_asked_for_within_half_a_percent() -> None:
    asked = [
        {"a": 0.05, "b": 0.05, "c": 0.9}, {"a": 0.5, "b": 0.0, "c": 0.5},
    ]  # fmt: skip
    loader = PackedLoader(endless())
    batches, flushed = iter(loader), 300  # the windows hold no older documents by then
    for weights in asked:
        loader.set_weights(weights)
        for _ in islice(batches, flushed):
            pass
        tokens = sum(
            next(batches).by_source[:, 0]  # type: ignore[index]
            for _ in range(1500)
        )
        shares = tokens / tokens.sum()
        assert np.abs(shares - list(weights.values())).max() < 0.005


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("kind", "workers"), [("random", 2), ("in cycles", 0)])
def test_shares_are_those_asked_for_on_average_if_weights_change_at_every_step(
    kind: str, workers: int
) -> None:
    """Weights change many times while a lane draws for one round."""
    rng, cycle = np.random.default_rng(8), 120
    packer = BestFitDecreasing(seq_len=128)
    loader = PackedLoader(endless(packer=packer), num_workers=workers)
    batches, asked, given = iter(loader), [], []
    for step in range(6 * cycle):
        phase = 2 * np.pi * (step / cycle + np.arange(3) / 3)
        weights = rng.dirichlet((1, 1, 1)) if kind == "random" else 1.2 + np.sin(phase)
        loader.set_weights(dict(zip(NAMES, weights.tolist(), strict=True)))
        asked.append(weights / weights.sum())
        given.append(next(batches).by_source[:, 0])  # type: ignore[index]
    first = loader._run.state.beside["weights"][-1][0] - len(asked) + 1
    wanted = np.mean(asked[cycle - first : -first], axis=0)
    tokens = np.sum(given[cycle:], axis=0)
    assert np.abs(tokens / tokens.sum() - wanted).max() < 0.005


@pytest.mark.slow
def test_weights_of_every_step_give_the_same_batches_on_any_ranks_after_any_stops() -> None:
    rng = np.random.default_rng(5)
    changes: Changes = {
        at: [(dict(zip(NAMES, rng.dirichlet((1, 1, 1)).tolist(), strict=True)), None)]
        for at in range(0, 360, 6)
    }
    expected = with_changes(endless, changes, [(1, 0, 420)], total=420)
    legs = [(1, 0, 66), (2, 0, 30), (6, 0, 9), (1, 2, 90), (3, 0, 100)]
    assert with_changes(endless, changes, legs, total=420) == expected


@given(st.lists(some_weights, min_size=1, max_size=6), st.data())
def test_a_lane_follows_changes_between_its_rounds_on_average(
    weights: list[dict[str, float]], data: st.DataObject
) -> None:
    places = data.draw(
        st.lists(st.integers(0, 40), min_size=len(weights), max_size=len(weights), unique=True)
    )
    changes = [WeightChange(at, each) for at, each in zip(sorted(places), weights, strict=True)]
    last = data.draw(st.none() | st.sampled_from([change.batch for change in changes]))
    batch = data.draw(st.integers(0, 50))
    found = mean_change(changes, last, batch, 6)
    shares = []
    for at in range(batch + 1):
        change = change_at(changes, at)
        if change is not None and (last is None or change.batch > last):
            total = sum(change.weights.values())
            shares.append([change.weights[name] / total for name in NAMES])
    if not shares:
        assert found == change_at(changes, batch)
        return
    assert found is not None
    total = sum(found.weights.values())
    assert [found.weights[name] / total for name in NAMES] == pytest.approx(
        np.mean(shares, axis=0).tolist()
    )
    assert found.batch == change_at(changes, batch).batch  # type: ignore[union-attr]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_weights_of_every_step_drop_no_batch(workers: int) -> None:
    """The state stays as small as after four hundred calls, and resumes to the bit."""
    rng = np.random.default_rng(8)
    loader = PackedLoader(endless(window=WindowConfig(rows=8)), num_workers=workers)
    batches, sizes = iter(loader), []
    live = None
    for _ in range(600):
        weights = rng.dirichlet((1, 1, 1))
        loader.set_weights(dict(zip(NAMES, weights.tolist(), strict=True)))
        next(batches)
        given = loader._live and loader._live._given
        live = live or given
        assert given is live  # never reopened
        sizes.append(len(loader._run.state.beside["weights"]))
    assert max(sizes) == sizes[400] <= 300
    resumed = PackedLoader(endless(window=WindowConfig(rows=8)))
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    expected = [identity(batch) for batch in islice(batches, 120)]
    assert [identity(batch) for batch in islice(resumed, 120)] == expected


def test_the_report_expects_the_weights_in_force() -> None:
    loader = PackedLoader(endless())
    loader.set_weights({"a": 0.7, "b": 0.2, "c": 0.1}, from_step=100)
    for _ in islice(loader, 100):
        pass
    assert loader.by_source()[0].expected == pytest.approx(1 / 3)
    for _ in islice(loader, 100):
        pass
    assert loader.by_source()[0].expected == pytest.approx((1 / 3 + 0.7) / 2, abs=0.002)


def test_a_change_is_in_every_state_that_may_still_be_asked_for() -> None:
    """A trainer that is some batches ahead saves a step that was before the change."""
    loader = PackedLoader(endless())
    batches = list(islice(loader, 40))
    loader.set_weights({"a": 1, "b": 0, "c": 0}, from_step=np.int64(40))
    state = json.loads(json.dumps(loader.state_dict(after=batches[-3])))
    assert state["weights"] == [[40, {"a": 1.0, "b": 0.0, "c": 0.0}]]
    resumed = PackedLoader(endless())
    resumed.load_state_dict(state)
    following = [identity(batch) for batch in islice(resumed, 90)]
    expected = [identity(batch) for batch in islice(loader, 88)]
    assert following[2:] == expected


def test_dataloaders_and_groups_go_on_with_changed_weights() -> None:
    def begun() -> PackedLoader:
        loader = PackedLoader(endless())
        loader.set_weights({"a": 1, "b": 2, "c": 9}, from_step=24)
        for _ in islice(loader, 36):
            pass
        return loader

    first = begun()
    state, expected = first.state_dict(), [identity(batch) for batch in islice(first, 60)]
    dataset = endless()
    dataset.load_state_dict(state)
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=2)
    assert [identity(batch) for batch in islice(loader, 60)] == expected
    grouped = begun().accumulate(3)
    assert [identity(b) for group in islice(grouped, 20) for b in group] == expected


def test_a_change_outlives_killed_workers() -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 9.0}
    alone, loader = PackedLoader(endless()), PackedLoader(endless(), num_workers=2)
    for one in (alone, loader):
        one.set_weights(weights, from_step=30)
    expected = [identity(batch) for batch in islice(alone, 200)]
    batches = iter(loader)
    found = [identity(next(batches)) for _ in range(40)]
    os.kill(child_processes()[0], signal.SIGKILL)
    with pytest.raises(WorkerError):
        found.extend(map(identity, batches))
    found += [identity(batch) for batch in islice(loader, 200 - len(found))]
    assert found == expected


def test_a_change_inside_groups_counts_from_the_group_that_follows() -> None:
    plain, grouped = PackedLoader(endless()), PackedLoader(endless())
    expected = [identity(batch) for batch in islice(plain, 30)]
    plain.set_weights({"a": 1, "b": 0, "c": 0})
    expected += [identity(batch) for batch in islice(plain, 60)]
    found = []
    for number, group in enumerate(islice(grouped.accumulate(3), 30)):
        found += [identity(batch) for batch in group]
        if number == 9:
            grouped.set_weights({"a": 1, "b": 0, "c": 0})
    assert found == expected


def test_other_settings_keep_a_change_and_another_mixture_ends_it() -> None:
    loader = PackedLoader(endless())
    loader.set_weights({"a": 1, "b": 0, "c": 0}, from_step=12)
    for _ in islice(loader, 60):
        pass
    state = loader.state_dict()
    longer = PackedLoader(
        endless(packer=BestFitDecreasing(seq_len=64), window=WindowConfig(rows=6))
    )
    longer.load_state_dict(state, allow={"packer"})
    later = list(islice(longer, 400))[300:]
    assert {int(ids) // 1_000_000 for b in later for ids in b.input_ids[b.labels != -100]} == {0}

    def other() -> PackedDataset:
        return endless(weights={"a": 0, "b": 1, "c": 0})

    changed = PackedLoader(other())
    changed.load_state_dict(state, allow={"source"})
    assert "weights" not in changed.state_dict()
    expected = [identity(batch) for batch in islice(changed, 400)]
    assert {ids // 1_000_000 for one in expected[340:] for ids in one[2] if ids != PAD} == {1}
    again = PackedLoader(other())
    again.load_state_dict(state, allow={"source"})
    found = [identity(batch) for batch in islice(again, 30)]
    resumed = PackedLoader(other())
    resumed.load_state_dict(json.loads(json.dumps(again.state_dict())))
    assert found + [identity(batch) for batch in islice(resumed, 370)] == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ranks", [4, 8])
def test_ranks_that_share_batches_change_at_the_same_one(ranks: int) -> None:
    packer = Buckets(seq_lens=(8, 16, 32), cp=(1, 2, 4), shares=(0.3, 0.3, 0.4))
    weights = {"a": 8, "b": 1, "c": 1}

    def make(topology: Topology) -> PackedDataset:
        return endless(topology, packer=packer, lanes=24)

    def one(rank: int, member: Any) -> Any:
        loader = PackedLoader(make(Topology(rank, ranks)), ranks=member)
        batches = list(islice(loader, 20))
        loader.set_weights(weights)
        loader.set_weights({"a": 0, "b": 1, "c": 0}, from_step=loader._run.steps_taken + 20)
        batches += islice(loader, 60)
        changes = [batch for batch, _ in loader._run.state.beside["weights"]]
        return {batch.step * 24 + batch.lane: identity(batch) for batch in batches}, changes

    results = on_ranks(ranks, one)
    (first, second), *others = [changes for _, changes in results]
    assert all(changes == [first, second] for changes in others)
    assert first % 24 == 0
    found = {number: one for own, _ in results for number, one in own.items()}
    alone = PackedLoader(make(Topology()))
    expected = {}
    for number in range(max(found) + 1):
        if not number:
            alone.set_weights({"a": 0, "b": 1, "c": 0}, from_step=first)
            alone.set_weights(weights, from_step=second)
            batches = iter(alone)
        expected[number] = identity(next(batches))
    assert found == {number: expected[number] for number in found}


def test_different_numbers_on_different_ranks_are_refused_before_the_step() -> None:
    ranks = SimulatedRanks(2)

    def one(rank: int, member: Any) -> int:
        loader = PackedLoader(endless(Topology(rank, 2)), ranks=ranks[rank])
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        loader.set_weights({"a": 1, "b": 1, "c": 1 + rank})
        next(batches)  # the ranks had compared this step before
        with pytest.raises(RankError):
            next(batches)
        return int(loader._run.state.next_batch)

    assert on_ranks(2, one) == [12, 12]


@pytest.mark.parametrize(
    ("weights", "from_step", "setting"),
    [
        ({"a": 1, "b": 1}, None, "weights"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, None, "weights"),
        ({"a": 1, "b": 1, "c": -1}, None, "weights"),
        ({"a": 0, "b": 0, "c": 0}, None, "weights"),
        ({"a": 1, "b": 1, "c": float("nan")}, None, "weights"),
        ([(0, {"a": 1, "b": 1, "c": 1})], None, "weights"),
        ({"a": 1, "b": 1, "c": 1}, 4, "from_step"),
        ({"a": 1, "b": 1, "c": 1}, 7.5, "from_step"),
    ],
)
def test_invalid_weights_are_refused_and_the_run_continues(
    weights: Any, from_step: Any, setting: str
) -> None:
    loader, other = PackedLoader(endless()), PackedLoader(endless())
    for _ in islice(loader, 5):
        pass
    with pytest.raises(ConfigError) as error:
        loader.set_weights(weights, from_step=from_step)
    assert error.value.setting == setting
    left = [identity(batch) for batch in islice(loader, 20)]
    assert left == [identity(batch) for batch in islice(other, 25)][5:]


def test_runs_without_a_mixture_are_refused() -> None:
    alone = PackedDataset([[1, 2, 3]] * 50, seq_len=8, topology=Topology())
    with pytest.raises(ConfigError) as error:
        PackedLoader(alone).set_weights({"a": 1})
    assert error.value.setting == "source"


class Backwards:
    """The documents of each ordering window, the last first."""

    order_window_documents = 40
    exact = False
    related = False

    def order(self, documents: Any, *, seed: int = 0) -> Any:
        return np.arange(len(documents))[::-1].copy(), np.zeros(0, dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        return {"kind": "Backwards"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [Backwards(), SimilarityOrder(order_window_documents=24)])
def test_ordering_windows_are_drawn_by_the_weights_of_the_round_that_reads_them(order: Any) -> None:
    rng = np.random.default_rng(5)
    changes: Changes = {
        at: [(dict(zip(NAMES, rng.dirichlet((1, 1, 1)).tolist(), strict=True)), None)]
        for at in range(0, 180, 6)
    }

    def make(topology: Topology) -> PackedDataset:
        return endless(topology, order=order, packer=Concat(seq_len=32), attention="row")

    expected = with_changes(make, changes, [(1, 0, 240)], total=240)
    assert expected != with_changes(make, {}, [(1, 0, 240)], total=240)
    legs = [(1, 0, 36), (2, 0, 18), (1, 2, 42), (6, 0, 5), (1, 0, 6), (3, 0, 60)]
    assert with_changes(make, changes, legs, total=240) == expected


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["by weights", "several epochs of one"])
def test_a_finite_run_with_an_order_gives_every_document_once(name: str) -> None:
    changes: Changes = {
        24: [({"web": 1, "code": 8, "books": 0}, None)],
        72: [({"web": 8, "code": 1, "books": 3}, 100)],
    }

    def make(topology: Topology | None = None) -> PackedDataset:
        return dealt_mixture(name, topology, SHORT_SOURCES, order=Backwards())

    def run(legs: list[tuple[int, int, int]]) -> list[Any]:
        found = with_changes(make, changes, legs, total=100_000)
        return [one for one in found if set(one[2]) != {PAD}]

    expected = run([(1, 0, 10_000)])
    assert run([(2, 0, 20), (1, 2, 50), (1, 0, 3), (4, 0, 10_000)]) == expected
    tokens = np.concatenate([one[2] for one in expected])
    unchanged = np.concatenate([np.ravel(batch.input_ids) for batch in PackedLoader(make())])
    assert sorted(tokens[tokens < PAD]) == sorted(unchanged[unchanged < PAD])


@drawn(5, least=2)
@given(data=st.data())
def test_changes_kills_and_ranks_give_the_batches_of_an_uninterrupted_run_with_an_order(
    data: st.DataObject,
) -> None:
    def make(topology: Topology) -> PackedDataset:
        return endless(topology, order=Backwards(), packer=Concat(seq_len=32))

    at = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True))
    changes = {6 * each: [(data.draw(some_weights), None)] for each in at}
    ranks = st.sampled_from([1, 2, 3, 6])
    leg = st.tuples(ranks, st.integers(1, 9)).map(lambda pair: (pair[0], 0, pair[1] * 6 // pair[0]))
    legs = data.draw(st.lists(leg, max_size=8))
    expected = with_changes(make, changes, [(1, 0, 126)], total=126)
    assert with_changes(make, changes, [*legs, (2, 0, 63)], total=126) == expected


@pytest.mark.slow
def test_shares_of_a_run_with_an_order_become_the_ones_asked_for() -> None:
    loader = PackedLoader(endless(order=Backwards(), packer=Concat(seq_len=32)))
    batches = iter(loader)
    loader.set_weights({"a": 0.6, "b": 0.3, "c": 0.1})
    for _ in islice(batches, 600):
        pass
    tokens = sum(next(batches).by_source[:, 0] for _ in range(3000))  # type: ignore[index]
    assert np.abs(tokens / tokens.sum() - (0.6, 0.3, 0.1)).max() < 0.005


def test_states_of_ranks_with_different_weights_do_not_merge() -> None:
    states = []
    for rank in range(2):
        loader = PackedLoader(endless(Topology(rank, 2)))
        loader.set_weights({"a": 1, "b": 1, "c": 1 + rank})
        states.append(loader.state_dict())
    with pytest.raises(StateError):
        merge_states(states)


def test_a_run_that_restarts_has_the_weights_of_its_mixture() -> None:
    loader = PackedLoader(dealt_mixture("by weights", of=SHORT_SOURCES))
    expected = [identity(batch) for batch in loader]
    loader.set_weights({"web": 1, "code": 0, "books": 0}, from_step=0)
    changed = [identity(batch) for batch in loader]
    assert changed != expected
    assert loader.state_dict()["weights"][0][0] == 0
    assert [identity(batch) for batch in loader] == expected
