"""Ranks that share batches, by the row length of a step: the same batches on any number of them."""

from __future__ import annotations

import json
from functools import cache
from itertools import groupby, islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from streampack import Buckets, PackedBatch, PackedDataset, PackedLoader, Topology, merge_states
from streampack.errors import ConfigError
from tests.support.drawn import drawn
from tests.support.runs import DOCUMENTS, identity, make_dataset
from tests.support.simulated_ranks import on_ranks

PACKER = Buckets(seq_lens=(8, 16, 32), cp=(1, 2, 4), shares=(0.3, 0.3, 0.4))
LANES = 24
TOKENS = 16  # of a rank in any step


def shared(topology: Topology, **options: Any) -> PackedDataset:
    return make_dataset(**{"packer": PACKER, "lanes": LANES, "topology": topology, **options})


def number(batch: PackedBatch) -> int:
    return batch.step * LANES + batch.lane


@cache
def whole_run(**options: Any) -> list[Any]:
    """Return the batches of a run on one rank, which shares nothing."""
    batches = list(PackedLoader(shared(Topology(), **options)))
    assert {batch.cp_size for batch in batches} == {1}
    return [identity(batch) for batch in batches if batch.num_documents]


@cache
def steps_of(ranks: int, **options: Any) -> list[tuple[PackedBatch, ...]]:
    """Return the batch of every rank in each step of a run."""

    def one(rank: int, member: Any) -> list[PackedBatch]:
        return list(PackedLoader(shared(Topology(rank, ranks), **options), ranks=member))

    return list(zip(*on_ranks(ranks, one), strict=True))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ranks", [4, 8, 12])
def test_groups_of_neighbours_share_the_batches_of_a_step_in_order(ranks: int) -> None:
    following = 0
    for step in steps_of(ranks):
        (degree,) = {batch.cp_size for batch in step}
        (size,) = {batch.seq_len for batch in step}
        assert degree == PACKER.cp[PACKER.seq_lens.index(size)]
        assert {batch.rows * size for batch in step} == {degree * TOKENS}
        assert [batch.cp_rank for batch in step] == [rank % degree for rank in range(ranks)]
        taken = ranks // degree
        numbers = [number(batch) for batch in step]
        first = min(numbers)
        assert sorted({*numbers}) == list(range(first, first + taken))
        for group in range(taken):
            assert len({*numbers[group * degree : (group + 1) * degree]}) == 1
        # At the end steps in which no lane has a batch are left out.
        assert first == following or (first > following and not first % taken)
        following = first + taken


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ranks", [4, 8, 12, 24])
def test_batches_match_one_rank(ranks: int) -> None:
    found = {number(batch): identity(batch) for step in steps_of(ranks) for batch in step}
    expected = whole_run()
    at = {(lane, step): [*rest] for lane, step, *rest in expected}
    held = {(lane, step): [*rest] for lane, step, *rest in found.values() if (lane, step) in at}
    assert held == at


@pytest.mark.parametrize("ranks", [6, pytest.param(12, marks=pytest.mark.slow)])
def test_degrees_need_not_divide_one_another(ranks: int) -> None:
    packer = Buckets(seq_lens=(8, 18, 36), cp=(2, 3, 6), shares=(0.3, 0.3, 0.4))
    options: dict[str, Any] = {"packer": packer, "batch_size": 1}
    found = []
    for step in steps_of(ranks, **options):
        (degree,) = {batch.cp_size for batch in step}
        for group in range(0, ranks, degree):
            assert len({number(batch) for batch in step[group : group + degree]}) == 1
        found += sorted((b for b in step if not b.cp_rank and b.num_documents), key=number)
    assert [identity(batch) for batch in found] == whole_run(**options)


def test_ranks_of_a_group_hold_the_parts_of_one_batch_and_count_its_loss_once() -> None:
    ranks = 4
    for step in steps_of(ranks):
        heads = [batch for batch in step if not batch.cp_rank]
        total = sum(batch.num_loss_tokens for batch in heads)
        counted = 0
        for _, group in groupby(step, number):
            batches = list(group)
            parts = [batch.context_parallel("zigzag") for batch in batches]
            slots = torch.cat([part["slots"] for part in parts])
            assert slots.sort().values.tolist() == list(range(batches[0].rows * batches[0].seq_len))
            assert {len(part["slots"]) for part in parts} == {TOKENS}
            counted += sum(int((part["shift_labels"] != -100).sum()) for part in parts)
            for batch, part in zip(batches, parts, strict=True):
                assert torch.equal(batch.megatron()["tokens"], part["input_ids"])
        assert counted == total
        for batch in step:
            assert batch.num_items_in_batch == (total / ranks or 1)


@given(st.lists(st.tuples(st.sampled_from([1, 4, 8, 12]), st.integers(1, 9)), max_size=4))
@drawn(4, least=2)
def test_stopped_and_gone_on_with_on_any_ranks_every_batch_comes_once(
    legs: list[tuple[int, int]],
) -> None:
    state: str | None = None
    found: list[Any] = []
    for ranks, steps in [*legs, (4, 100_000)]:

        def one(rank: int, member: Any, world: int = ranks, count: int = steps) -> Any:
            loader = PackedLoader(shared(Topology(rank, world)), ranks=member)
            if state is not None:  # noqa: B023
                loader.load_state_dict(json.loads(state))  # noqa: B023
            return list(islice(loader, count)), loader.state_dict()

        results = on_ranks(ranks, one)
        for step in zip(*(batches for batches, _ in results), strict=True):
            assert len({batch.seq_len for batch in step}) == 1
            heads = (batch for batch in step if not batch.cp_rank)
            found += [identity(batch) for batch in sorted(heads, key=number)]
        state = json.dumps(merge_states([saved for _, saved in results]))
    filled = [one for one in found if any(token < 4_000_000 for token in one[2])]
    assert filled == whole_run()


def test_state_after_a_batch_counts_the_batches_of_other_ranks_in_its_step() -> None:
    def one(rank: int, member: Any) -> Any:
        loader = PackedLoader(shared(Topology(rank, 8)), ranks=member)
        batches = list(islice(loader, 12))
        return loader.state_dict(after=batches[6]), batches[7:]

    results = on_ranks(8, one)
    state = merge_states([saved for saved, _ in results])

    def again(rank: int, member: Any) -> Any:
        loader = PackedLoader(shared(Topology(rank, 8)), ranks=member)
        loader.load_state_dict(state)
        return [identity(batch) for batch in islice(loader, 5)]

    for after, (_, batches) in zip(on_ranks(8, again), results, strict=True):
        assert after == [identity(batch) for batch in batches]


def test_workers_give_the_same_batches() -> None:
    def own(rank: int, workers: int) -> list[Any]:
        loader = PackedLoader(shared(Topology(rank, 4)), num_workers=workers)
        return [(identity(batch), batch.cp_size, batch.cp_rank) for batch in islice(loader, 20)]

    expected = own(3, 0)
    assert own(3, 2) == expected
    dataset = shared(Topology(3, 4))
    of_torch = DataLoader(dataset, batch_size=None, num_workers=2)
    found = [(identity(batch), batch.cp_size, batch.cp_rank) for batch in islice(of_torch, 20)]
    assert found == expected


def test_numbers_of_ranks_that_cannot_share_are_refused_with_possible_ones() -> None:
    for ranks in (2, 6, 16):
        with pytest.raises(ConfigError) as refused:
            PackedLoader(shared(Topology(0, ranks)))
        assert refused.value.setting == "topology"
        assert "4, 8, 12, 24 ranks" in str(refused.value)


def test_lanes_are_chosen_so_that_the_ranks_can_share() -> None:
    for ranks in (4, 12, 20):
        dataset = shared(Topology(1, ranks), lanes=None)
        assert dataset.plan.config.lanes % ranks == 0


def test_estimate_and_progress_are_in_steps_of_all_ranks() -> None:
    def one(rank: int, member: Any) -> Any:
        loader = PackedLoader(shared(Topology(rank, 4), lanes=8), ranks=member)
        estimate = loader.estimate_steps()
        assert estimate is not None
        steps = 0
        for steps, _ in enumerate(loader, 1):
            if steps == 50:
                assert abs(loader._run.steps_taken - steps) <= 3
        assert abs(estimate.steps - steps) <= max(estimate.error, 12), (estimate, steps)
        return steps

    assert len({*on_ranks(4, one)}) == 1


def test_every_token_comes_once() -> None:
    tokens = [
        token
        for step in steps_of(4)
        for batch in step
        if not batch.cp_rank
        for token in batch.input_ids.ravel().tolist()
        if token < 4_000_000
    ]
    assert sorted(tokens) == list(range(sum(map(len, DOCUMENTS))))


def test_a_run_of_ranks_by_themselves_goes_on_with_groups_of_them() -> None:
    def leg(ranks: int, packer: Buckets, steps: int | None, state: Any) -> Any:
        def one(rank: int, member: Any) -> Any:
            loader = PackedLoader(shared(Topology(rank, ranks), packer=packer), ranks=member)
            if state is not None:
                loader.load_state_dict(state, allow={"packer"})
            return list(islice(loader, steps)), loader.state_dict()

        results = on_ranks(ranks, one)
        batches = [batch for own, _ in results for batch in own if not batch.cp_rank]
        return batches, merge_states([saved for _, saved in results])

    alone = Buckets(seq_lens=(8, 16, 32), shares=(0.3, 0.3, 0.4))
    before, state = leg(3, alone, 5, None)
    between, state = leg(4, PACKER, 20, state)
    after, _ = leg(8, PACKER, None, state)
    tokens = [t for b in (*before, *between, *after) for t in b.input_ids.ravel().tolist()]
    assert max(batch.cp_size for batch in between) > 1
    assert sorted(t for t in tokens if t < 4_000_000) == list(range(sum(map(len, DOCUMENTS))))
