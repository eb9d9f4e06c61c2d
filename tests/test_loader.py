"""PackedLoader and the plain DataLoader: order, exactly once, resume, deaths of processes."""

from __future__ import annotations

import os
import signal
import time
import warnings
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streampack import (
    Hook,
    PackedLoader,
    TokenRules,
    Topology,
    WindowConfig,
)
from streampack.errors import ConfigError, ContentError, StateError, WorkerError
from tests.support.runs import (
    LENGTHS,
    PAD,
    child_processes,
    identity,
    make_dataset,
    tokens_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
SLEEP_S = 0.002


@pytest.mark.parametrize(
    "context", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_any_number_of_workers_gives_the_same_batches(context: str) -> None:
    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    assert tokens_of(PackedLoader(make_dataset())) == list(range(sum(LENGTHS)))
    for workers in (1, 4) if context == "fork" else (1,):
        loader = PackedLoader(make_dataset(), num_workers=workers, multiprocessing_context=context)
        assert [identity(batch) for batch in loader] == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_plain_dataloader_delivers_every_token_once(workers: int) -> None:
    loader = DataLoader(make_dataset(), batch_size=None, num_workers=workers)
    assert tokens_of(loader) == list(range(sum(LENGTHS)))


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


def test_torch_warns_of_the_workers_that_start_and_not_of_those_asked_for() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        next(iter(PackedLoader(make_dataset(lanes=1), num_workers=200)))
    assert "This DataLoader will create" not in "".join(str(one.message) for one in found)


def _reject(documents: Any, seeds: Any) -> Any:
    raise RuntimeError("this hook is broken")


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_an_error_of_a_worker_reaches_the_loop(context: str) -> None:
    broken = make_dataset(filter=Hook("broken", _reject))
    with pytest.raises(ConfigError, match="this hook is broken"):
        list(PackedLoader(broken, num_workers=2, multiprocessing_context=context))
    beyond = make_dataset(token_rules=TokenRules(vocab_size=100, pad_id=98, eos_id=99))
    with pytest.raises(ContentError):
        list(PackedLoader(beyond, num_workers=2, multiprocessing_context=context))


def test_lanes_chosen_for_other_memory_give_way_to_the_states_lanes() -> None:
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


def test_metrics_count_taken_batches_and_the_time_of_each_stage() -> None:
    blocks = len(LENGTHS) // 9  # or more: the lanes' last blocks are shorter
    for workers in (0, 2):
        loader = PackedLoader(make_dataset(filter=Hook("slow", _slow)), num_workers=workers)
        began = time.perf_counter()
        tokens = sum(batch.num_tokens for batch in loader)
        elapsed_s = time.perf_counter() - began
        metrics = loader.metrics()
        assert metrics.composition.placed == tokens == sum(LENGTHS)
        assert metrics.composition.documents == len(LENGTHS)
        assert metrics.times.hook_s >= blocks * SLEEP_S
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [2, 0])
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
