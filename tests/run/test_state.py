"""The state of a run: small, merged over ranks, elastic, and never trusted blindly."""

from __future__ import annotations

import copy
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st

from streampack import (
    DistributedState,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    Topology,
    WindowConfig,
    merge_states,
    sources,
)
from streampack.errors import StateError
from streampack.packing import BestFitDecreasing, Packer
from tests.support.memory_source import MemorySource, heavy_tailed, numbered_documents

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

SEQ_LEN = 32
LANES = 8
LENGTHS = heavy_tailed(700, seed=5)
DOCUMENTS = numbered_documents(LENGTHS)


def make_dataset(
    rank: int = 0, ranks: int = 1, source: Any = None, **options: Any
) -> PackedDataset:
    values: dict[str, Any] = {
        "packer": BestFitDecreasing(seq_len=SEQ_LEN),
        "batch_size": 2,
        "window": WindowConfig(rows=10),
        "lanes": LANES,
        "topology": Topology(rank, ranks),
    }
    source = source or MemorySource([DOCUMENTS[:300], DOCUMENTS[300:]], block_documents=9)
    return PackedDataset(source, **{**values, **options})


def identity(batch: PackedBatch) -> tuple[int, int, list[int], list[int]]:
    return batch.step, batch.lane, batch.input_ids.ravel().tolist(), batch.cu_seqlens.tolist()


def take(loader: Any, count: int) -> list[Any]:
    batches = [batch for _, batch in zip(range(count), loader, strict=False)]
    # Ranks in one process do not ask each other, so they end with unequally many empty ones.
    return [identity(batch) for batch in batches if batch.num_documents]


def rank_states(ranks: int, steps: int, **options: Any) -> list[dict[str, Any]]:
    states = []
    for rank in range(ranks):
        loader = PackedLoader(make_dataset(rank, ranks), **options)
        take(loader, steps)
        states.append(loader.state_dict())
    return states


# ------------------------------------------------------------------ elastic resume


def test_four_ranks_become_two_one_and_four_again_and_the_global_batches_go_on() -> None:
    expected = take(PackedLoader(make_dataset()), 10_000)
    found: list[Any] = []
    state: dict[str, Any] | None = None
    # 3 steps of 2 ranks and 5 of 1 leave a place at which the lanes of 4 ranks are shifted.
    for ranks, workers, steps in [(4, 1, 5), (2, 3, 3), (1, 2, 5), (4, 0, 1), (2, 0, 10_000)]:
        states = []
        for rank in range(ranks):
            loader = PackedLoader(make_dataset(rank, ranks), num_workers=workers if rank else 0)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            found += take(loader, steps)
            states.append(loader.state_dict())
        if steps < 10_000:
            state = merge_states(states[::-1])
    assert sorted(found) == expected


def test_states_that_do_not_belong_together_are_not_merged() -> None:
    states = rank_states(2, 4)
    late = rank_states(2, 5)
    (alone,) = rank_states(1, 8)
    with pytest.raises(StateError, match=r"Lanes 1, 3, 5, 7 are in none of the 1"):
        merge_states(states[:1])
    with pytest.raises(StateError, match=r"Lanes 0, 2, 4, 6 are in state number 2"):
        merge_states([states[0], states[0]])
    with pytest.raises(StateError, match=r"`next_batch` is 8 .* and 10 in number 2"):
        merge_states([states[0], late[1]])
    with pytest.raises(StateError, match="no states"):
        merge_states([])
    other = PackedLoader(make_dataset(1, 2, seed=1))
    take(other, 4)
    with pytest.raises(StateError, match=r"`seed` was 0 .* 1 now"):
        merge_states([states[0], other.state_dict()])
    assert merge_states(states) == alone == merge_states([alone])


# ------------------------------------------------------------------ torch.distributed.checkpoint


def _rank_saves_or_loads(
    rank: int, ranks: int, folder: str, legs: int, plain: bool, results: Any
) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous-{legs}", rank=rank, world_size=ranks
    )
    try:
        dataset = make_dataset(rank, ranks)
        if plain:
            loader = PackedLoader(dataset, num_workers=rank % 2)
        else:
            loader = PackedLoader(dataset, num_workers=rank % 2)
        data = DistributedState(loader)
        if legs:
            dcp.load({"data": data}, checkpoint_id=f"{folder}/{legs - 1}")
        batches = take(loader, 3)
        dcp.save({"data": data}, checkpoint_id=f"{folder}/{legs}")
        results.put(batches)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("plain", [False, True], ids=["PackedLoader", "DataLoader"])
def test_a_distributed_checkpoint_of_four_ranks_loads_on_two_and_on_one(
    plain: bool, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("fork")
    found: list[Any] = []
    for legs, ranks in enumerate((4, 2, 1)):
        results = context.Queue()
        processes = [
            context.Process(
                target=_rank_saves_or_loads,
                args=(rank, ranks, str(tmp_path), legs, plain, results),
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for _ in processes:
            found += results.get(timeout=120)
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
    assert sorted(found) == take(PackedLoader(make_dataset()), 3 * (4 + 2 + 1))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_after_a_batch_that_is_not_the_last_one_taken_goes_on_after_it(
    workers: int,
) -> None:
    expected = take(PackedLoader(make_dataset()), 10_000)
    loader = PackedLoader(make_dataset(), num_workers=workers)
    taken = []
    for batch in loader:
        taken.append(batch)
        if len(taken) == 9:
            assert loader.skip(2) == 2
        if len(taken) == 30:
            break
    last = json.dumps(loader.state_dict())
    for ago in (1, 2, 9, 15):
        state = json.loads(json.dumps(loader.state_dict(after=taken[-ago])))
        again = PackedLoader(make_dataset())
        again.load_state_dict(state)
        assert take(again, 10_000) == expected[33 - ago :]
    assert json.dumps(loader.state_dict(after=taken[-1])) == last == json.dumps(loader.state_dict())
    with pytest.raises(StateError, match="not one of the last 16 of the loop"):
        loader.state_dict(after=taken[0])


def test_the_state_after_a_batch_knows_nothing_of_what_was_stepped_over_later() -> None:
    loader = PackedLoader(make_dataset())
    batches = iter(loader)
    loader.skip(1)
    first, _ = next(batches), next(batches)
    before = loader.state_dict(after=first)
    loader.skip(3)
    assert loader.state_dict()["stepped_over"] == [[0, 1], [3, 6]]
    assert loader.state_dict(after=first) == before
    assert (before["stepped_over"], before["next_batch"]) == ([[0, 1]], 2)


# ------------------------------------------------------------------ size


def test_a_rank_of_sixteen_such_lanes_has_a_state_of_less_than_1_mib() -> None:
    lengths = np.exp(np.random.default_rng(0).normal(4.4, 1.1, 20_000)).astype(int) + 1
    documents = numbered_documents(lengths.tolist())
    window = WindowConfig(rows=int(13_000 * lengths.mean()) // 2048, documents=10_000)
    dataset = PackedDataset(
        MemorySource([documents] * 16),
        packer=BestFitDecreasing(seq_len=2048),
        batch_size=16,
        window=window,
        lanes=16,
        topology=Topology(),
        epochs=None,
    )
    loader = PackedLoader(dataset)
    for number, _ in enumerate(loader):
        if number % 256 == 255:
            state = loader.state_dict()
            if min(own["documents"] for own in state["lanes"].values()) >= 9_500:
                break
    assert len(state["lanes"]) == 16
    assert len(json.dumps(state)) < 1 << 20
    assert all(len(json.dumps(own)) < 16 << 10 for own in state["lanes"].values())


@pytest.mark.parametrize("long", [False, True], ids=["short", "cut"])
def test_a_lane_of_ten_thousand_documents_has_a_state_of_less_than_16_kib(long: bool) -> None:
    rng = np.random.default_rng(2)
    packer: Packer = BestFitDecreasing(seq_len=128)
    lengths = np.exp(rng.normal(4.5 if long else 3.0, 1.0, 40_000)).astype(int) + 1
    dataset = PackedDataset(
        MemorySource([numbered_documents(lengths.tolist())]),
        packer=packer,
        batch_size=16,
        window=WindowConfig(rows=int(10_500 * lengths.mean()) // 128, documents=10_000, carry=0.9),
        lanes=1,
        topology=Topology(),
    )
    loader = PackedLoader(dataset)
    sizes, documents = [], []
    for number, _ in enumerate(loader):
        if number % 16 == 0:
            state = loader.state_dict()["lanes"]["0"]
            sizes.append(len(json.dumps(state)))
            documents.append(state["documents"])
    assert max(documents) >= 9_500
    assert max(sizes) < 16 * 1024


# ------------------------------------------------------------------ damage


def make_mixed(**options: Any) -> PackedDataset:
    parts = {
        "a": MemorySource([DOCUMENTS[:200]], block_documents=9),
        "b": MemorySource([DOCUMENTS[200:500], DOCUMENTS[500:]], block_documents=7),
    }
    mixture = sources.Mixture(parts, weights={"a": 1, "b": 2}, quantum_documents=3)
    return make_dataset(source=mixture, **options)


def saved_after(dataset: PackedDataset, count: int) -> tuple[dict[str, Any], list[Any]]:
    """The state after so many batches, as a file has it, and the batches that follow."""
    loader = PackedLoader(dataset)
    batches = iter(loader)
    take(batches, count)
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state, take(batches, 10_000)


STATE, FOLLOWING = saved_after(make_dataset(), 21)
MIXED_STATE, MIXED_FOLLOWING = saved_after(make_mixed(), 45)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, ...]] = []
    if isinstance(value, dict):
        inner = [place for name in value for place in _places(value[name], (*path, name))]
    elif isinstance(value, list):
        inner = [place for i, part in enumerate(value) for place in _places(part, (*path, i))]
    return [path, *inner] if path else inner


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just([]),
    st.just({}), st.lists(st.integers(0, 9), max_size=3), st.sampled_from([-1, 1 << 62, 10**30]),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(_places(STATE)), st.data())
def test_a_damaged_state_is_refused_or_gives_the_same_batches(
    place: tuple[Any, ...], data: st.DataObject
) -> None:
    _check_damage(make_dataset, STATE, FOLLOWING, _damaged(STATE, place, data))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(_places(MIXED_STATE)), st.data())
def test_a_damaged_state_of_a_mixture_is_refused_or_gives_the_same_batches(
    place: tuple[Any, ...], data: st.DataObject
) -> None:
    _check_damage(make_mixed, MIXED_STATE, MIXED_FOLLOWING, _damaged(MIXED_STATE, place, data))


def _damaged(saved: dict[str, Any], place: tuple[Any, ...], data: st.DataObject) -> dict[str, Any]:
    """A copy in which what is at `place` is missing, something else, or another lane's."""
    state = copy.deepcopy(saved)
    holder: Any = state
    for step in place[:-1]:
        holder = holder[step]
    old = holder[place[-1]]
    kind = data.draw(st.sampled_from(["drop", "replace", "flip", "rename", "other lane's"]))
    if kind == "drop":
        del holder[place[-1]]
    elif kind == "flip" and isinstance(old, str) and old:
        at = data.draw(st.integers(0, len(old) - 1))
        holder[place[-1]] = old[:at] + data.draw(st.characters()) + old[at + 1 :]
    elif kind == "rename" and isinstance(holder, dict):
        holder[data.draw(st.text(max_size=5))] = holder.pop(place[-1])
    elif kind == "other lane's" and place[0] == "lanes" and len(place) > 1:
        other = saved["lanes"][data.draw(st.sampled_from(sorted(saved["lanes"])))]
        holder[place[-1]] = copy.deepcopy(other.get(place[2]) if len(place) > 2 else other)
    else:
        holder[place[-1]] = data.draw(ANYTHING)
    return state


def _taken_up(dataset: PackedDataset, state: dict[str, Any]) -> list[Any]:
    loader = PackedLoader(dataset)
    loader.load_state_dict(state)
    return take(loader, 10_000)


def _check_damage(
    make: Callable[[], PackedDataset],
    saved: dict[str, Any],
    following: list[Any],
    state: dict[str, Any],
) -> None:
    if json.dumps(state, sort_keys=True) == json.dumps(saved, sort_keys=True):
        assert _taken_up(make(), state) == following
        return
    loader = PackedLoader(make())
    with pytest.raises(StateError) as refused:
        loader.load_state_dict(state)
    assert all((refused.value.fact, refused.value.consequence, refused.value.remedy))
    with pytest.raises(StateError):
        loader.load_state_dict(state, allow={"packer", "source"})
    with pytest.raises(StateError):
        merge_states([state])


def test_the_state_of_one_lane_is_refused_under_the_number_of_another() -> None:
    lanes = STATE["lanes"]
    assert lanes["0"]["step"] + lanes["0"]["emitted"] == lanes["1"]["step"] + lanes["1"]["emitted"]
    exchanged = {**STATE, "lanes": {**lanes, "0": lanes["1"], "1": lanes["0"]}}
    twice = {**STATE, "lanes": {**lanes, "0": lanes["1"]}}
    for state in (exchanged, twice):
        with pytest.raises(StateError):
            PackedLoader(make_dataset()).load_state_dict(state)
        with pytest.raises(StateError):
            merge_states([state])


@pytest.mark.parametrize("value", [None, [], "", 5, {}, {"version": 3}])
def test_what_is_no_state_is_refused(value: Any) -> None:
    with pytest.raises(StateError):
        PackedLoader(make_dataset()).load_state_dict(value)


def test_a_state_without_a_version_is_refused() -> None:
    state = {name: STATE[name] for name in STATE if name != "version"}
    with pytest.raises(StateError, match="The state lacks version"):
        PackedLoader(make_dataset()).load_state_dict(state)


@pytest.mark.parametrize("version", [2, 99])
def test_a_state_of_another_version_is_refused_and_a_new_run_can_start(version: int) -> None:
    loader = PackedLoader(make_dataset())
    message = f"has version {version}, this streampack reads version 6.*or start a new run"
    with pytest.raises(StateError, match=message):
        loader.load_state_dict({**STATE, "version": version, "more": 1})
    assert take(loader, 21) == take(PackedLoader(make_dataset()), 21)
