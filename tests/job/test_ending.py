"""Ends of runs: the same step everywhere, nothing lost, the same sequence on any topology."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import BestFitDecreasing, PackedLoader, Topology
from streampack.errors import RankError
from streampack.job.ending import Alone, End, Ending, Gap
from tests.support.drawn import drawn
from tests.support.runs import (
    LENGTHS,
    PAD,
    filled,
    identity,
    in_order,
    make_dataset,
    uneven,
)
from tests.support.simulated_ranks import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@dataclass(frozen=True)
class Item:
    lane: int
    step: int
    has_next: bool


def serve(
    lengths: list[int],
    world_size: int,
    start: int = 0,
    *,
    end: End = "drain",
    steps: int | None = None,
    leaves_out: bool = False,
) -> tuple[list[list[tuple[int, bool]]], list[int]]:
    """Return (number, is real) of each rank's served items, and its items left, for such lanes."""
    lanes = len(lengths)

    def run(rank: int, ranks: Any) -> tuple[list[tuple[int, bool]], int]:
        topology = Topology(rank, world_size)
        own = topology.lanes(start, lanes)
        turns = {lane: -((lane - start) // lanes) for lane in own}
        numbers = sorted(
            step * lanes + lane for lane in own for step in range(turns[lane], lengths[lane])
        )
        numbers = [number for number in numbers if topology.takes(number, start)]
        items = (Item(n % lanes, n // lanes, n // lanes + 1 < lengths[n % lanes]) for n in numbers)
        ending = Ending(
            items,
            topology=topology,
            start=start,
            lanes=lanes,
            known={lane: min(turns[lane], lengths[lane]) for lane in own},
            ranks=ranks,
            end=end,
            leaves_out=leaves_out,
        )
        served = []
        for item in ending:
            served.append((item.step * lanes + item.lane, not isinstance(item, Gap)))
            if steps is not None and len(served) == steps:
                return served, 0
        return served, len(list(ending.rest()))

    results = on_ranks(world_size, run)
    return [served for served, _ in results], [left for _, left in results]


DIVISIONS = [(lanes, n) for lanes in (1, 2, 4, 6, 12) for n in range(1, 13) if lanes % n == 0]


@drawn(150)
@given(
    division=st.sampled_from(DIVISIONS),
    data=st.data(),
    end=st.sampled_from(["drain", "stop"]),
)
def test_all_ranks_leave_after_the_same_step_from_any_start(
    division: tuple[int, int], data: Any, end: End
) -> None:
    lanes, ranks = division
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=lanes, max_size=lanes))
    rotations = max(lengths) if end == "drain" else min(lengths)
    start = data.draw(st.integers(0, rotations * lanes))
    served, left = serve(lengths, ranks, start, end=end)
    assert len({len(one) for one in served}) == 1
    own = [s * lanes + lane for lane, n in enumerate(lengths) for s in range(n)]
    coming = [number for number in own if number >= start]
    if end == "drain":
        steps = -(-(max(coming, default=start - 1) + 1 - start) // ranks)
    else:  # steps of rotations in which all lanes have a batch
        steps = (rotations * lanes - start) // ranks
    assert len(served[0]) == steps
    numbers = sorted(pair for one in served for pair in one)
    assert [n for n, _ in numbers] == list(range(start, start + steps * ranks))
    for number, real in numbers:
        assert real == (number // lanes < min(lengths[number % lanes], rotations))
    real_ones = sum(real for _, real in numbers)
    assert sum(left) == (len(coming) - real_ones if end == "stop" else 0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_stopping_ends_with_the_last_rotation_that_is_whole(ranks: int) -> None:
    served, left = serve([3, 2, 4, 2, 5, 3], ranks, end="stop")
    assert [len(one) for one in served] == [12 // ranks] * ranks
    assert sum(left) == 19 - 12


@drawn(150)
@given(division=st.sampled_from(DIVISIONS), data=st.data())
def test_steps_of_which_no_rank_has_a_batch_are_left_out(
    division: tuple[int, int], data: Any
) -> None:
    lanes, ranks = division
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=lanes, max_size=lanes))
    start = data.draw(st.integers(0, max(lengths) * lanes))
    served, _ = serve(lengths, ranks, start, leaves_out=True)
    steps = list(zip(*served, strict=True))
    own = [s * lanes + lane for lane, n in enumerate(lengths) for s in range(n)]
    real = [number for step in steps for number, is_real in step if is_real]
    assert real == sorted(number for number in own if number >= start)
    for step in steps:  # a lane is known to be dry once its first turn is over
        assert any(is_real for _, is_real in step) or (ranks > 1 and step[0][0] < start + lanes)


@drawn(50)
@given(division=st.sampled_from(DIVISIONS), data=st.data(), end=st.sampled_from(["drain", "stop"]))
def test_ranks_that_break_after_the_same_step_have_asked_the_same(
    division: tuple[int, int], data: Any, end: End
) -> None:
    lanes, ranks = division
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=lanes, max_size=lanes))
    start = data.draw(st.integers(0, min(lengths) * lanes))
    serve(lengths, ranks, start, end=end, steps=data.draw(st.integers(1, 20)))  # `on_ranks` checks


@drawn(60)
@given(lanes=st.sampled_from([1, 3, 4, 12]), ranks=st.integers(1, 9), data=st.data())
def test_any_number_of_ranks_evaluates_every_batch_once_in_equally_many_steps(
    lanes: int, ranks: int, data: Any
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=lanes, max_size=lanes))
    served, _ = serve(lengths, ranks)
    assert len({len(one) for one in served}) == 1
    numbers = sorted(pair for one in served for pair in one)
    assert [n for n, _ in numbers] == list(range(len(numbers)))
    real = [n for n, is_real in numbers if is_real]
    assert real == sorted(s * lanes + lane for lane, n in enumerate(lengths) for s in range(n))


def test_stopping_counts_the_undelivered_rest_and_draining_delivers_it() -> None:
    everything = PackedLoader(make_dataset())
    expected = [identity(batch) for batch in everything]

    def run(rank: int, ranks: Any) -> Any:
        dataset = make_dataset(topology=Topology(rank, 2))
        loader = PackedLoader(dataset, end="stop", ranks=ranks)
        found = [identity(batch) for batch in loader]
        state = loader.state_dict()
        return found, loader.metrics(), state

    results = on_ranks(2, run)
    served = in_order([found for found, _, _ in results])
    assert served == expected[: len(served)]
    assert all(set(ids) != {PAD} for _, _, ids, _ in served)  # every batch has tokens
    totals = results[0][1] + results[1][1]
    assert totals.left.placed > 0
    whole = everything.metrics().composition
    assert totals.composition.placed + totals.left.placed == whole.placed
    assert totals.composition.documents + totals.left.documents == whole.documents
    assert totals.as_dict()["tokens_left"] == totals.left.placed

    def drain(rank: int, ranks: Any) -> Any:
        loader = PackedLoader(make_dataset(topology=Topology(rank, 2)), ranks=ranks)
        loader.load_state_dict(results[rank][2])
        return [identity(batch) for batch in loader]

    assert served + filled(in_order(on_ranks(2, drain))) == expected


def test_ranks_that_start_from_different_places_are_refused_on_every_rank() -> None:
    loader = PackedLoader(make_dataset(topology=Topology(0, 2)))
    next(iter(loader))
    state = loader.state_dict()

    def start(loader: PackedLoader, rank: int) -> None:
        if rank == 0:
            loader.load_state_dict(state)

    found = refusals({}, {}, start=start)
    assert found == [("load_state_dict", "2 on rank 0 and 0 on rank 1.")] * 2


@pytest.mark.parametrize(
    ("one", "other", "setting", "words"),
    [
        ({"seed": 1}, {"seed": 2}, "seed", "1 on rank 0 and 2 on rank 1"),
        ({"batch_size": 4}, {}, "batch_size", "128 on rank 0 and 64 on rank 1"),
        ({"lanes": 4}, {"lanes": 12}, "lanes", "4 on rank 0 and 12 on rank 1"),
        (
            {},
            {"packer": BestFitDecreasing(seq_len=64), "batch_size": 1},
            "packer.seq_len",
            "32 on rank 0 and 64 on rank 1",
        ),
        ({"epochs": 2}, {"epochs": None}, "epochs", "2 on rank 0 and None on rank 1"),
        ({"shuffle": False}, {}, "shuffle", "False on rank 0 and True on rank 1"),
        ({}, {"attention": "row"}, "attention", "'document' on rank 0"),
    ],
)
def test_every_rank_names_the_argument_that_differs(
    one: dict[str, Any], other: dict[str, Any], setting: str, words: str
) -> None:
    found = refusals(one, other)
    assert found[0] == found[1]
    assert found[0][0] == setting
    assert found[0][1].startswith(words)


def test_ranks_with_different_ends_are_refused() -> None:
    found = refusals({}, {}, ends=("drain", "stop"))
    assert found == [("end", "'drain' on rank 0 and 'stop' on rank 1.")] * 2


def refusals(
    *arguments: dict[str, Any],
    ends: tuple[End, End] = ("drain", "drain"),
    start: Callable[[PackedLoader, int], None] = lambda loader, rank: None,
) -> list[tuple[str | None, str]]:
    """The setting and the values that the error of each of two ranks names."""

    def run(rank: int, ranks: Any) -> tuple[str | None, str]:
        dataset = make_dataset(topology=Topology(rank, 2), **arguments[rank])
        loader = PackedLoader(dataset, ranks=ranks, end=ends[rank])
        start(loader, rank)
        with pytest.raises(RankError) as raised:
            next(iter(loader))
        return raised.value.setting, raised.value.fact.partition(" is ")[2]

    return on_ranks(2, run)


def test_empty_batches_are_padding_without_loss_of_the_lanes_shape_and_place() -> None:
    loader = PackedLoader(uneven(Topology(0, 2), provenance=True))
    states, empty = {}, 0
    for number, batch in enumerate(loader):
        assert (batch.step, batch.lane) == divmod(2 * number, 12)
        assert batch.input_ids.shape == (2, 32)
        assert batch.cu_seqlens[-1] == 64
        if batch.num_documents:
            states[batch.lane] = batch.state
            continue
        empty += 1
        assert batch.num_tokens == batch.num_loss_tokens == batch.sum_squared_lengths == 0
        assert (batch.labels == -100).all()
        assert (batch.document_ids == -1).all()
        assert (batch.input_ids == 4_000_000).all()
        assert batch.provenance is not None
        assert len(batch.provenance) == 0
        assert not batch.has_next
        assert batch.state == states[batch.lane]
    assert empty > 12
    metrics = loader.metrics()
    assert (metrics.batches, metrics.empty_batches) == (number + 1, empty)
    assert metrics.composition.slots == 64 * (number + 1 - empty)


def test_every_batch_tells_if_its_lane_has_another() -> None:
    for workers in (0, 2):
        last = {}
        for batch in PackedLoader(make_dataset(), num_workers=workers):
            if batch.num_documents:
                assert last.get(batch.lane, True)
                last[batch.lane] = batch.has_next
        assert list(last.values()) == [False] * 6


def test_an_endless_run_asks_only_whether_all_ranks_start_the_same() -> None:
    class Counted(Alone):
        asked = 0

        def total(self, count: int, same: int = 0) -> Any:
            self.asked += 1
            return super().total(count)

    ranks = Counted()
    batches = iter(PackedLoader(make_dataset(epochs=None), ranks=ranks))
    assert next(batches).num_documents
    asked = ranks.asked
    assert all(
        batch.num_documents and batch.has_next
        for batch, _ in zip(batches, range(400), strict=False)
    )
    assert ranks.asked == asked


def test_skipped_batches_are_consumed_recorded_and_counted() -> None:
    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    for workers in (0, 2):
        loader = PackedLoader(make_dataset(), num_workers=workers)
        found = []
        assert loader.skip(2) == 2  # before the first batch
        for batch in loader:
            found.append(identity(batch))
            if len(found) == 10:
                assert loader.skip(5) == 5
                assert loader.skip(1) == 1
                state = json.loads(json.dumps(loader.state_dict()))
                assert state["stepped_over"] == [[0, 2], [12, 18]]
        assert found == expected[2:12] + expected[18:]
        metrics = loader.metrics()
        assert metrics.composition.placed + metrics.stepped_over.placed == sum(LENGTHS)
        again = PackedLoader(make_dataset())
        again.load_state_dict(state)
        assert [identity(batch) for batch in again] == expected[18:]
        assert again.state_dict()["stepped_over"] == [[0, 2], [12, 18]]
    loader = PackedLoader(make_dataset())
    assert loader.skip(10**6) == len(expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_was_left_can_be_skipped_ahead(workers: int) -> None:
    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    loader = PackedLoader(make_dataset(), num_workers=workers)
    found = []
    for batch in loader:
        found.append(identity(batch))
        break
    assert loader.skip(2) == 2
    for group in loader.accumulate(3):
        found.extend(identity(batch) for batch in group)
        break
    assert loader.skip(1) == 1
    assert loader.state_dict()["stepped_over"] == [[1, 3], [6, 7]]
    found.extend(identity(batch) for batch in loader)
    assert found == expected[:1] + expected[3:6] + expected[7:]
    assert loader.skip(1) == 0  # the run has ended
