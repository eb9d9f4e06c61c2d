"""A run that goes on with other batches is dealt by them: no lane waits while nothing comes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig, merge_states
from streampack.deals.rule import LAG
from streampack.packing import BestFitDecreasing, Buckets, Concat, Packer, Pad
from streampack.run.plan import RunPlan
from tests.support.drawn import drawn
from tests.support.memory_source import MemorySource
from tests.support.simulated_ranks import on_ranks

PAD = 1 << 30
CHANGED = {"packer"}
FEW = 6  # empty batches of a lane, of a hundred


def corpus(tokens: int, seed: int = 0) -> MemorySource:
    """Documents of consecutive numbers, in ten shards, longer in one than in another."""
    numbers = np.random.default_rng(seed)
    shards, first = [], 0
    while first < tokens:
        lengths = np.exp(numbers.normal(numbers.normal(3.5, 0.6), 0.9, 40)).astype(int) + 1
        ends = first + np.cumsum(lengths)
        first = int(ends[-1])
        shards.append([np.arange(e - n, e, dtype=np.uint32) for n, e in zip(lengths, ends)])  # noqa: B905
    return MemorySource(shards, block_documents=8)


def dataset(
    source: Any, packer: Packer, batch_tokens: int, topology: Topology | None = None, **options: Any
) -> PackedDataset:
    rules = TokenRules(pad_id=PAD, eos_id=PAD + 1)
    values = {"lanes": 8, "topology": topology or Topology(), "token_rules": rules, **options}
    return PackedDataset(
        source, packer=packer, batch_size=batch_tokens // packer.seq_lens[-1], **values
    )


def tokens_of(batches: list[Any]) -> Counter[int]:
    ids = [batch.input_ids.numpy().ravel() for batch in batches]
    return Counter(np.concatenate([row[row < PAD] for row in ids]).tolist() if ids else [])


def assert_once(batches: list[Any], tokens: int, epochs: int = 1) -> None:
    found = tokens_of(batches)
    assert len(found) == tokens
    assert set(found.values()) == {epochs}


def size(source: MemorySource) -> int:
    return sum(len(document) for shard in source.shards for document in shard)


def to_the_end(loader: PackedLoader, lanes: int) -> list[Any]:
    """The batches that are left: no lane waits longer than for the next deal, nor often.

    Lanes that were dealt all there is end as they can.
    """
    found, empty, waits = [], Counter[int](), Counter[int]()
    every = loader.state_dict()["fingerprint"]["dealing"]["every"]
    for batch in loader:
        found.append(batch)
        if not batch.num_documents:
            waits[batch.lane] += 1
            assert waits[batch.lane] <= 1000, "the run does not end"
            continue
        assert waits[batch.lane] <= LAG + 2 * every
        empty[batch.lane] += waits.pop(batch.lane, 0)
        assert empty[batch.lane] <= FEW + len(found) / lanes * FEW / 100
    return found


@pytest.mark.parametrize(("longer", "stop"), [(16, 100), (2048, 1), (2048, 401)])
def test_a_run_goes_on_to_its_end_with_batches_many_times_as_large(longer: int, stop: int) -> None:
    source = corpus(150_000)
    begun = PackedLoader(dataset(source, BestFitDecreasing(seq_len=64), 256))
    found = list(islice(begun, stop))
    packer = BestFitDecreasing(seq_len=64 * longer)
    loader = PackedLoader(dataset(source, packer, 256 * longer, window=WindowConfig(rows=16)))
    loader.load_state_dict(json.loads(json.dumps(begun.state_dict())), allow=CHANGED)
    assert_once([*found, *to_the_end(loader, 8)], size(source))


def test_a_state_saved_under_the_deals_of_smaller_batches_is_dealt_by_its_own() -> None:
    source = corpus(150_000)
    begun = PackedLoader(dataset(source, BestFitDecreasing(seq_len=64), 256))

    def changed() -> PackedDataset:
        packer = BestFitDecreasing(seq_len=2048)
        return dataset(source, packer, 8192, window=WindowConfig(rows=16))

    waiting = changed()
    small = begun.dataset.plan.config.dealing
    plan = RunPlan.of(replace(waiting.plan.config, dealing=small), Topology())
    waiting._continue_from(plan, plan.start())  # with batches of now, deals of before
    stuck = PackedLoader(waiting)
    found = list(islice(stuck, 12))
    loader = PackedLoader(changed())
    loader.load_state_dict(json.loads(json.dumps(stuck.state_dict())))
    assert_once([*found, *to_the_end(loader, 8)], size(source))


@pytest.mark.parametrize(
    ("first", "stop"), [(Concat(seq_len=64), 180), (BestFitDecreasing(seq_len=128), 30)]
)
def test_lanes_end_together_where_later_rows_are_nearly_all_padding(
    first: Packer, stop: int
) -> None:
    source, lanes, batch_tokens = corpus(30_000), 3, first.seq_lens[-1]
    window = WindowConfig(rows=4)
    begun = PackedLoader(dataset(source, first, batch_tokens, lanes=lanes, window=window))
    found = list(islice(begun, stop))
    loader = PackedLoader(dataset(source, Pad(seq_len=1024), 1024, lanes=lanes, window=window))
    loader.load_state_dict(json.loads(json.dumps(begun.state_dict())), allow=CHANGED)
    rest = list(loader)
    assert_once([*found, *rest], size(source))
    turns = Counter(batch.lane for batch in rest)
    assert max(turns.values()) - min(turns.values()) <= 12


@st.composite
def stages(draw: st.DrawFn) -> dict[str, Any]:
    seq_len = draw(st.sampled_from([32, 64, 256, 1024]))
    kinds = st.sampled_from([BestFitDecreasing, Concat, Pad, Buckets])
    kind = draw(kinds)
    if kind is Buckets:
        packer: Packer = Buckets(seq_lens=(seq_len // 2, seq_len), shares=(0.5, 0.5))
    else:
        packer = kind(seq_len=seq_len)
    rows = draw(st.sampled_from([1, 2, 8]))
    window = WindowConfig(rows=rows * draw(st.sampled_from([4, 40])))
    return {"packer": packer, "batch_tokens": seq_len * rows, "window": window}


@drawn(16, phases=(Phase.explicit, Phase.generate))
@given(
    lanes=st.integers(2, 9),
    epochs=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    legs=st.lists(stages(), min_size=2, max_size=4),
    stops=st.lists(st.integers(0, 60), min_size=3, max_size=3),
    ranks=st.integers(1, 3),
    seed=st.integers(0, 3),
)
def test_no_lane_waits_for_nothing_over_any_chain_of_changes(
    lanes: int,
    epochs: list[int],
    legs: list[dict[str, Any]],
    stops: list[int],
    ranks: int,
    seed: int,
) -> None:
    source, found, state = corpus(15_000, seed), [], ""
    passes = 1
    for number, leg in enumerate(legs):
        last = number == len(legs) - 1
        passes = max(passes, epochs[min(number, 2)])

        def one(
            rank: int, member: Any, leg: Any = leg, state: str = state, last: bool = last,
            passes: int = passes, stop: int = stops[min(number, 2)],
        ) -> Any:  # fmt: skip
            topology = Topology(rank, ranks)
            made = dataset(source, topology=topology, lanes=lanes, epochs=passes, **leg)
            loader = PackedLoader(made, ranks=member)
            if state:
                loader.load_state_dict(json.loads(state), allow=CHANGED)
            batches = to_the_end(loader, lanes) if last else list(islice(loader, stop))
            return batches, loader.state_dict()

        results = on_ranks(ranks, one)
        found += [batch for batches, _ in results for batch in batches]
        if not last:
            state = json.dumps(merge_states([saved for _, saved in results]))
    assert_once(found, size(source), passes)
