"""torchdata's StatefulDataLoader resumes exactly, and its state goes on elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streampack import (
    PackedBatch,
    PackedDataset,
    PackedLoader,
    Topology,
    WindowConfig,
    extract_state,
    merge_states,
)
from streampack.errors import StateError
from streampack.packing import BestFitDecreasing
from tests.support.memory_source import MemorySource, heavy_tailed, numbered_documents

stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

SEQ_LEN = 32
LANES = 12
DOCUMENTS = numbered_documents(heavy_tailed(160, seed=5))


def make_dataset(rank: int = 0, ranks: int = 1, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "packer": BestFitDecreasing(seq_len=SEQ_LEN),
        "batch_size": 2,
        "window": WindowConfig(rows=10),
        "lanes": LANES,
        "topology": Topology(rank, ranks),
    }
    source = MemorySource([DOCUMENTS[:90], DOCUMENTS[90:]], block_documents=9)
    return PackedDataset(source, **{**values, **options})


def make_loader(dataset: PackedDataset, workers: int, **options: Any) -> Any:
    return stateful_dataloader.StatefulDataLoader(
        dataset, batch_size=None, num_workers=workers, **options
    )


def identity(batch: PackedBatch) -> tuple[int, int, list[int], list[int]]:
    return batch.step, batch.lane, batch.input_ids.ravel().tolist(), batch.cu_seqlens.tolist()


def states_of(dataset: PackedDataset, workers: int, **options: Any) -> tuple[list[Any], list[str]]:
    """The batches of a loader, and its state before the first of them and behind each."""
    loader = make_loader(dataset, workers, **options)
    states = [json.dumps(loader.state_dict())]
    batches = []
    for batch in loader:
        batches.append(identity(batch))
        states.append(json.dumps(loader.state_dict()))
    return batches, states


def full(batches: list[Any]) -> list[Any]:
    """Without those of dry lanes, in order of their numbers."""
    return sorted(batch for batch in batches if any(batch[2]))


def in_turn(batches: list[Any], rank: int, ranks: int) -> int:
    """How many came before a worker was through early, whose empty batches then are missing."""
    numbers = [step * LANES + lane for step, lane, _, _ in batches]
    found = (k for k, number in enumerate(numbers) if number != k * ranks + rank)
    return next(found, len(numbers))


SOME_WORKERS = pytest.mark.parametrize("workers", [0, 2, pytest.param(3, marks=pytest.mark.slow)])


@SOME_WORKERS
def test_resuming_after_every_batch_gives_the_same_rest(workers: int) -> None:
    batches, states = states_of(make_dataset(0, 2), workers)
    assert len(batches) > 18
    for taken, state in list(enumerate(states[:-1]))[:: 4 if workers else 1]:
        again = make_loader(make_dataset(0, 2), workers)
        again.load_state_dict(json.loads(state))
        assert [identity(batch) for batch in again] == batches[taken:]


@SOME_WORKERS
def test_its_state_after_every_step_goes_on_on_another_number_of_ranks(workers: int) -> None:
    expected = full([identity(batch) for batch in PackedLoader(make_dataset())])
    pairs = [states_of(make_dataset(rank, 2), workers) for rank in range(2)]
    steps = min(in_turn(batches, rank, 2) for rank, (batches, _) in enumerate(pairs))
    assert steps > 18
    for step in range(steps + 1):
        taken = [batch for batches, _ in pairs for batch in batches[:step]]
        merged = merge_states([extract_state(json.loads(states[step])) for _, states in pairs])
        assert merged["next_batch"] == 2 * step
        ranks, rest = (1, 3)[step % 2], []
        for rank in range(ranks):
            loader = PackedLoader(make_dataset(rank, ranks))
            loader.load_state_dict(json.loads(json.dumps(merged)))
            rest += [identity(batch) for batch in loader]
        assert full(taken + rest) == expected


def test_a_dataset_that_starts_from_an_extracted_state_goes_on_under_other_workers() -> None:
    batches, states = states_of(make_dataset(), 3)
    for taken in (1, 7, 20):
        dataset = make_dataset()
        dataset.load_state_dict(extract_state(json.loads(states[taken])))
        rest, later = states_of(dataset, 2)
        assert full(batches[:taken] + rest) == full(batches)
        again = PackedLoader(make_dataset())
        again.load_state_dict(extract_state(json.loads(later[5])))
        assert full([identity(batch) for batch in again]) == full(rest[5:])


def test_no_state_to_the_very_end_loses_or_repeats_a_batch() -> None:
    batches, states = states_of(make_dataset(), 2)
    for taken in range(len(states) - 1, 0, -3):
        loader = PackedLoader(make_dataset())
        loader.load_state_dict(extract_state(json.loads(states[taken])))
        rest = [identity(batch) for batch in loader]
        assert full(batches[:taken] + rest) == full(batches)
        assert (rest == []) == (taken == len(batches))


def test_states_that_torchdata_saves_now_and_then_are_extracted_where_they_are_exact() -> None:
    batches, states = states_of(make_dataset(), 2, snapshot_every_n_steps=4)
    for taken in range(13):
        if taken % 4:
            with pytest.raises(StateError):
                extract_state(json.loads(states[taken]))
        else:
            loader = PackedLoader(make_dataset())
            loader.load_state_dict(extract_state(json.loads(states[taken])))
            assert full([identity(batch) for batch in loader]) == full(batches[taken:])


def test_a_loader_of_other_ranks_workers_or_settings_refuses_the_state() -> None:
    _, states = states_of(make_dataset(0, 2), 0)
    state = json.loads(states[5])
    for dataset in (make_dataset(0, 3), make_dataset(1, 2), make_dataset(0, 2, seed=1)):
        loader = make_loader(dataset, 0)
        loader.load_state_dict(state)
        with pytest.raises(StateError):
            next(iter(loader))
    _, states = states_of(make_dataset(0, 2), 2)
    inner = json.loads(states[5])["_snapshot"]["_worker_snapshots"]["worker_1"]
    iterator = iter(make_dataset(0, 2))
    with pytest.raises(StateError):
        iterator.load_state_dict(inner["fetcher_state"]["dataset_iter_state"])


def test_what_is_no_state_of_such_a_loader_is_refused() -> None:
    _, states = states_of(make_dataset(), 2)
    other = make_loader([1, 2, 3], 0)
    for state in ({}, other.state_dict(), {"_snapshot": {}}, {"_snapshot": None}):
        with pytest.raises(StateError):
            extract_state(state)
    state = json.loads(states[9])
    workers = state["_snapshot"]["_worker_snapshots"]
    workers["worker_0"] = json.loads(states[3])["_snapshot"]["_worker_snapshots"]["worker_0"]
    with pytest.raises(StateError):
        extract_state(state)
