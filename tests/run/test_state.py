"""The state of a run: small, merged over ranks, elastic, and never trusted blindly."""

from __future__ import annotations

import copy
import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hypothesis import assume, given
from hypothesis import strategies as st

from streampack import (
    DistributedState,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    Topology,
    WindowConfig,
    merge_states,
)
from streampack.errors import StateError
from streampack.packing import BestFitDecreasing, Packer
from tests.support.drawn import drawn
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


def test_states_that_do_not_belong_together_are_not_merged() -> None:
    states, late, (alone,) = rank_states(2, 4), rank_states(2, 5), rank_states(1, 8)
    other = PackedLoader(make_dataset(1, 2, seed=1))
    take(other, 4)
    for wrong in (
        [],
        states[:1],
        [states[0], states[0]],
        [states[0], late[1]],
        [states[0], other.state_dict()],
    ):
        with pytest.raises(StateError):
            merge_states(wrong)
    with pytest.raises(StateError):
        PackedLoader(make_dataset(1, 2)).load_state_dict(states[0])
    assert merge_states(states) == alone == merge_states([alone])


def _rank_saves_or_loads(rank: int, ranks: int, folder: str, legs: int, results: Any) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous-{legs}", rank=rank, world_size=ranks
    )
    try:
        loader = PackedLoader(make_dataset(rank, ranks), num_workers=rank % 2)
        data = DistributedState(loader)
        if legs:
            dcp.load({"data": data}, checkpoint_id=f"{folder}/{legs - 1}")
        batches = take(loader, 3)
        dcp.save({"data": data}, checkpoint_id=f"{folder}/{legs}")
        results.put(batches)
    finally:
        dist.destroy_process_group()


def test_a_distributed_checkpoint_of_four_ranks_loads_on_two_and_on_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    found: list[Any] = []
    for legs, ranks in enumerate((4, 2, 1)):
        results = context.Queue()
        processes = [
            context.Process(
                target=_rank_saves_or_loads,
                args=(rank, ranks, str(tmp_path), legs, results),
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for _ in processes:
            found += results.get(timeout=600)
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
    assert sorted(found) == take(PackedLoader(make_dataset()), 3 * (4 + 2 + 1))


def test_a_distributed_checkpoint_of_a_bare_loader_is_refused(tmp_path: Path) -> None:
    loader = PackedLoader(make_dataset())
    for checkpoint in (dcp.save, dcp.load):
        with pytest.raises(StateError) as caught:
            checkpoint({"data": loader}, checkpoint_id=tmp_path / "saved")
        assert caught.value.setting == "loader"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [2, 0])
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
    with pytest.raises(StateError):  # before the last 16 of the loop
        loader.state_dict(after=taken[0])


def test_the_state_after_a_batch_does_not_record_later_skipped_batches() -> None:
    loader = PackedLoader(make_dataset())
    batches = iter(loader)
    loader.skip(1)
    first, _ = next(batches), next(batches)
    before = loader.state_dict(after=first)
    loader.skip(3)
    assert loader.state_dict()["stepped_over"] == [[0, 1], [3, 6]]
    assert loader.state_dict(after=first) == before
    assert (before["stepped_over"], before["next_batch"]) == ([[0, 1]], 2)


def test_a_checkpoint_in_the_place_of_its_state_is_refused_and_the_remedy_loads_it() -> None:
    loader = PackedLoader(make_dataset())
    take(loader, 3)
    plain = loader.state_dict()
    gathered = DistributedState(loader).state_dict()
    for state in ({"model": {}, "data": plain}, {"inner": {"data": plain}}, gathered):
        again = PackedLoader(make_dataset())
        for load in (again.load_state_dict, DistributedState(again).load_state_dict):
            if (state, load.__self__) == (gathered, again) or state is not gathered:
                with pytest.raises(StateError) as caught:
                    load(state)
                place, *method = caught.value.remedy.removeprefix("Pass ").rstrip(".").split(" to ")
                names = {"state": state, "loader": again, "DistributedState": DistributedState}
                eval(method[0] if method else "loader.load_state_dict", names)(eval(place, names))
                assert again.state_dict() == plain


@pytest.mark.slow
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


STATE = json.loads(json.dumps(rank_states(1, 21)[0]))


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(value, (dict, list)):
        return []
    inner = [(*path, name) for name in (value if isinstance(value, dict) else range(len(value)))]
    return [*inner, *(place for at in inner for place in _places(value[at[-1]], at))]


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just([]),
    st.just({}), st.sampled_from([-1, 1 << 62, 10**30]),
)  # fmt: skip


@drawn(150)
@given(st.sampled_from(_places(STATE)), st.sampled_from(["drop", "replace", "exchange"]), st.data())
def test_a_damaged_state_is_refused(place: tuple[Any, ...], kind: str, data: st.DataObject) -> None:
    state = copy.deepcopy(STATE)
    holder: Any = state
    for step in place[:-1]:
        holder = holder[step]
    if kind == "drop":
        del holder[place[-1]]
    elif kind == "replace":
        holder[place[-1]] = data.draw(ANYTHING)
    else:  # with another lane's value
        lanes = state["lanes"]
        lanes["0"], lanes["1"] = lanes["1"], lanes["0"]
    assume(json.dumps(state, sort_keys=True) != json.dumps(STATE, sort_keys=True))
    loader = PackedLoader(make_dataset())
    for allow in ((), {"packer", "source"}):
        with pytest.raises(StateError):
            loader.load_state_dict(state, allow=allow)
    with pytest.raises(StateError):
        merge_states([state])


@pytest.mark.parametrize("value", [None, [], "", 5, {}, {"version": 3}])
def test_objects_other_than_states_are_refused_and_a_new_run_can_start(value: Any) -> None:
    loader = PackedLoader(make_dataset())
    with pytest.raises(StateError):
        loader.load_state_dict(value)
    assert take(loader, 21) == take(PackedLoader(make_dataset()), 21)


def test_the_fingerprint_has_the_names_of_every_version() -> None:
    names = [
        *("attention", "balance", "batch_tokens", "dealing", "eos", "fields", "filter", "grouped"),
        *("lanes", "layout", "map", "media", "order", "packer", "seed", "shuffle", "source"),
        *("tokenizer", "window"),
    ]
    assert sorted(PackedDataset([[1, 2, 3]], seq_len=8).plan.fingerprint) == names
