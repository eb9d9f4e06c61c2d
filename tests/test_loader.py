"""PackedLoader and the plain DataLoader: order, exactly once, resume, and what happens on death."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streampack import (
    Hook,
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    WindowConfig,
    merge_states,
)
from streampack.errors import ConfigError, ContentError, StateError, WorkerError
from streampack.packing import BestFitDecreasing, Concat, Packer, Pad
from tests.support.runs import (
    LENGTHS,
    PAD,
    SEQ_LEN,
    child_processes,
    identities,
    identity,
    make_dataset,
    tokens_of,
)
from tests.support.simulated_ranks import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
SLEEP_S = 0.002


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_any_number_of_workers_gives_the_same_batches(context: str) -> None:
    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    assert tokens_of(PackedLoader(make_dataset())) == list(range(sum(LENGTHS)))
    for workers in (1, 2, 4, 9) if context == "fork" else (2,):
        loader = PackedLoader(make_dataset(), num_workers=workers, multiprocessing_context=context)
        assert [identity(batch) for batch in loader] == expected


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_plain_dataloader_delivers_every_token_once(workers: int) -> None:
    loader = DataLoader(make_dataset(), batch_size=None, num_workers=workers)
    assert tokens_of(loader) == list(range(sum(LENGTHS)))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 6, 8])
def test_ranks_share_the_batches_and_the_global_order_is_the_same(world_size: int) -> None:
    expected = identities(PackedLoader(make_dataset()))
    found = []
    for rank in range(world_size):
        dataset = make_dataset(topology=Topology(rank, world_size))
        found += identities(PackedLoader(dataset, num_workers=rank % 2))
    assert sorted(found, key=lambda item: item[1] * 6 + item[0]) == expected


@pytest.mark.parametrize(
    "packer",
    [BestFitDecreasing(seq_len=SEQ_LEN), Concat(seq_len=SEQ_LEN), Pad(seq_len=SEQ_LEN)],
    ids=lambda packer: type(packer).__name__,
)
def test_resuming_after_any_batch_gives_the_same_rest(packer: Packer) -> None:
    loader = PackedLoader(make_dataset(packer))
    batches, states = [], []
    for batch in loader:
        batches.append(identity(batch))
        states.append(json.dumps(loader.state_dict()))
    for i in [0, 1, 5, 6, 7, *range(10, len(states), 17), len(states) - 1]:
        again = PackedLoader(make_dataset(packer))
        again.load_state_dict(json.loads(states[i]))
        assert [identity(batch) for batch in again] == batches[i + 1 :]


def test_resuming_with_prefetching_workers_gives_the_same_rest() -> None:
    batches = [identity(batch) for batch in PackedLoader(make_dataset())]
    for stop in (1, 13, 60):
        first = PackedLoader(make_dataset(), num_workers=2, prefetch_factor=8)
        for i, _ in enumerate(first):
            if i == stop:
                break
        state = json.loads(json.dumps(first.state_dict()))
        again = PackedLoader(make_dataset(), num_workers=3)
        again.load_state_dict(state)
        assert [identity(batch) for batch in again] == batches[stop + 1 :]


def test_a_rank_resumes_its_own_state_and_refuses_anothers() -> None:
    def first(rank: int, member: Any) -> Any:
        loader = PackedLoader(make_dataset(topology=Topology(rank, 2)), ranks=member)
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        state = loader.state_dict()
        return state, [identity(batch) for batch in batches]

    rest = on_ranks(2, first)

    def again(rank: int, member: Any) -> Any:
        loader = PackedLoader(make_dataset(topology=Topology(rank, 2)), ranks=member)
        loader.load_state_dict(rest[rank][0])
        return [identity(batch) for batch in loader]

    assert on_ranks(2, again) == [expected for _, expected in rest]
    for rank, (state, _) in enumerate(rest):
        with pytest.raises(StateError):
            PackedLoader(make_dataset(topology=Topology(1 - rank, 2))).load_state_dict(state)


def test_a_loop_that_breaks_goes_on_behind_its_last_batch() -> None:
    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    loader = PackedLoader(make_dataset(), num_workers=2)
    found = []
    for batch in loader:
        found.append(identity(batch))
        if len(found) == 17:
            break
    found += [identity(batch) for batch in loader]
    assert found == expected
    assert [identity(batch) for batch in loader] == expected  # finished: from the beginning


def test_a_killed_worker_is_named_and_the_loader_goes_on_behind_the_last_batch() -> None:
    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    loader = PackedLoader(make_dataset(), num_workers=2, prefetch_factor=1)
    batches = iter(loader)
    found = [identity(next(batches)) for _ in range(9)]
    for pid in child_processes():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="killed by signal 9"):
        found.extend(map(identity, batches))
    assert 9 <= len(found) < len(expected)
    found += [identity(batch) for batch in loader]
    assert found == expected


def test_no_worker_outlives_its_loop() -> None:
    for _ in PackedLoader(make_dataset(), num_workers=3):
        assert len(child_processes()) == 3
        break
    assert child_processes() == []


def _reject(documents: Any, seeds: Any) -> Any:
    raise RuntimeError("this hook is broken")


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_what_a_worker_raises_reaches_the_loop(context: str) -> None:
    broken = make_dataset(filter=Hook("broken", _reject))
    with pytest.raises(ConfigError, match='"broken" raised RuntimeError: this hook is broken'):
        list(PackedLoader(broken, num_workers=2, multiprocessing_context=context))
    beyond = make_dataset(token_rules=TokenRules(vocab_size=100, pad_id=98, eos_id=99))
    with pytest.raises(ContentError, match="the vocabulary has 100"):
        list(PackedLoader(beyond, num_workers=2, multiprocessing_context=context))


def test_a_state_of_another_run_is_refused_with_field_and_both_values() -> None:
    loader = PackedLoader(make_dataset())
    next(iter(loader))
    state = loader.state_dict()
    others: list[tuple[str, PackedDataset]] = [
        ("`seed` was 0 .* is 3", make_dataset(seed=3)),
        ("`packer.kind` was 'BestFitDecreasing'", make_dataset(Concat(seq_len=SEQ_LEN))),
        ("`batch_tokens` was 64 .* is 96", make_dataset(batch_size=3)),
        ("`lanes` was 6 .* is 3", make_dataset(lanes=3)),
        ("`filter` was None", make_dataset(filter=Hook("mine", _reject))),
        ("`eos` was", make_dataset(token_rules=TokenRules(eos="append", eos_id=PAD + 1))),
    ]
    for message, dataset in others:
        with pytest.raises(StateError, match=message):
            PackedLoader(dataset).load_state_dict(state)
    for broken in ({}, {**state, "version": 99}):
        with pytest.raises(StateError):
            PackedLoader(make_dataset()).load_state_dict(broken)


def test_lanes_chosen_for_other_memory_give_way_to_those_of_the_state() -> None:
    loader = PackedLoader(make_dataset(lanes=2))
    expected = [identity(batch) for batch in loader]
    again = PackedLoader(make_dataset(lanes=None, window=WindowConfig(rows=10, memory_limit=1)))
    assert again.state_dict()["fingerprint"]["lanes"] == 1
    batches = iter(loader)
    next(batches)
    again.load_state_dict(loader.state_dict())
    assert [identity(batch) for batch in again] == expected[1:]


def test_lanes_left_to_choose_are_taken_from_the_state() -> None:
    loader = PackedLoader(make_dataset(lanes=None), num_workers=2)
    next(iter(loader))
    state = loader.state_dict()
    again = PackedLoader(make_dataset(lanes=None, topology=Topology()))
    again.load_state_dict(state)
    assert again.state_dict() == state


def _slow(documents: Any, seeds: Any) -> Any:
    time.sleep(SLEEP_S)
    return np.ones(len(documents), dtype=bool)


def test_metrics_count_what_the_loop_has_taken_and_say_where_its_time_went() -> None:
    blocks = len(LENGTHS) // 9  # or more: the lanes' last blocks are shorter
    for workers in (0, 2):
        loader = PackedLoader(make_dataset(filter=Hook("slow", _slow)), num_workers=workers)
        began = time.perf_counter()
        tokens = sum(batch.num_tokens for batch in loader)
        elapsed_s = time.perf_counter() - began
        metrics = loader.metrics()
        assert metrics.composition.placed == tokens == sum(LENGTHS)
        assert metrics.composition.documents == len(LENGTHS)
        assert metrics.times.prepare_s >= blocks * SLEEP_S
        assert metrics.wait_s <= elapsed_s
        if workers == 0:  # whatever lanes do, the loop waits for
            assert sum(astuple(metrics.times)) <= metrics.wait_s
        assert set(metrics.as_dict()) >= {"utilisation", "wait_s", "read_s", "tokens"}


def test_endless_epochs_reshuffle_and_go_on() -> None:
    loader = PackedLoader(make_dataset(epochs=None, lanes=1))
    seen: list[int] = []
    for batch in loader:
        seen += batch.input_ids.ravel().tolist()
        if len(seen) > 3 * sum(LENGTHS):
            break
    counts = np.bincount([token for token in seen if token < PAD], minlength=sum(LENGTHS))
    assert counts.min() >= 2
    assert counts.max() <= 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_has_one_live_iterator(workers: int) -> None:
    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    loader = PackedLoader(make_dataset(), num_workers=workers)
    first = iter(loader)
    found = [identity(next(first))]
    second = iter(loader)
    found.append(identity(next(second)))
    with pytest.raises(StateError):
        next(first)
    found += [identity(batch) for batch in second]
    assert found == expected
    state = PackedLoader(make_dataset()).state_dict()
    third = iter(loader)
    next(third)
    loader.load_state_dict(state)
    assert child_processes() == []
    with pytest.raises(StateError):
        next(third)
    assert [identity(batch) for batch in loader] == expected


def test_loaders_over_one_dataset_do_not_meet() -> None:
    dataset = make_dataset()
    expected = [identity(batch) for batch in PackedLoader(dataset)]
    loaders = [PackedLoader(dataset, num_workers=workers) for workers in (0, 2, 1)]
    for batches in zip(*loaders, strict=True):
        assert len({str(identity(batch)) for batch in batches}) == 1
    first = PackedLoader(dataset)
    next(iter(first))
    second = PackedLoader(dataset)
    second.load_state_dict(first.state_dict())
    assert [identity(batch) for batch in second] == expected[1:]
    assert [identity(batch) for batch in PackedLoader(dataset)] == expected


def test_lane_states_of_some_ranks_go_on_on_others() -> None:
    expected = identities(PackedLoader(make_dataset()))
    for before, steps, after in ((2, 7, 3), (3, 5, 2), (6, 9, 1), (1, 13, 6)):
        states, found = [], []
        for rank in range(before):
            loader = PackedLoader(make_dataset(topology=Topology(rank, before)))
            found += identities(batch for _, batch in zip(range(steps), loader, strict=False))
            states.append(json.loads(json.dumps(loader.state_dict())))
        assert len({state["next_batch"] for state in states}) == 1
        merged = merge_states(states)
        for rank in range(after):
            again = PackedLoader(make_dataset(topology=Topology(rank, after)), num_workers=rank % 2)
            again.load_state_dict(merged)
            found += identities(again)
        assert sorted(found, key=lambda item: item[1] * 6 + item[0]) == expected
