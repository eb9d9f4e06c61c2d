"""Batches of one key each: windows, whole runs, other ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import (
    BestFitDecreasing,
    PackedDataset,
    PackedLoader,
    Topology,
    WindowConfig,
)
from streampack.changes.rebuilding import plain, rebuild_packer
from streampack.errors import ConfigError, StateError
from streampack.packing import Balance, Capacity, Concat, FirstFitDecreasing, Separate
from tests.support.drawn import drawn
from tests.support.restoring import assert_restores_everywhere
from tests.support.simulated_ranks import over_legs

ROW = 64


def records(count: int, keys: int, seed: int) -> list[dict[str, Any]]:
    """Documents of distinct tokens, some longer than a row, with keys of which some are rare."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 30, count) * rng.choice([1, 7], count, p=[0.9, 0.1])
    key = np.minimum(rng.geometric(0.3, count) - 1, keys - 1)
    begins = np.cumsum(lengths) - lengths
    return [
        {"tokens": (begin + np.arange(n)).tolist(), "lora": int(k), "frames": int(n)}
        for begin, n, k in zip(begins.tolist(), lengths.tolist(), key.tolist(), strict=True)
    ]


RECORDS = records(300, 9, 5)


def dataset(packer: Any = None, data: Any = RECORDS, **changes: Any) -> PackedDataset:
    packer = packer or BestFitDecreasing(seq_len=ROW, limits=[Separate("lora", batches=True)])
    fields = {"lora": "int32", "frames": "int32"}
    given = {"document_fields": fields, "batch_size": 3, "topology": Topology(), "lanes": 1}
    return PackedDataset(data, packer=packer, **{**given, **changes})


def assert_one_key_each(batches: list[Any], data: Any = RECORDS) -> None:
    """Every token is in one batch, and every batch has the documents of one key."""
    key = {n: record["lora"] for record in data for n in record["tokens"]}
    found: list[int] = []
    for batch in batches:
        ids = batch.input_ids[batch.document_ids >= 0].tolist()
        assert len({key[n] for n in ids}) == 1
        assert set(batch.document_fields["lora"].tolist()) == {key[ids[0]]}
        found += ids
    assert sorted(found) == sorted(key)


@drawn(60)
@given(
    st.integers(1, 300),
    st.sampled_from([1, 4, 64]),
    st.integers(0, 99),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([1, 4]),
    st.sampled_from([(0.0, 3), (0.5, 16), (0.9, 0)]),
    st.integers(1, 3),
)
def test_every_token_goes_once_in_batches_of_one_key(
    count: int, keys: int, seed: int, rows: int, best: bool, align: int, waits: Any, lanes: int
) -> None:
    kind = BestFitDecreasing if best else FirstFitDecreasing
    packer = kind(seq_len=ROW, align=align, limits=[Separate("lora", batches=True)])
    data, window = records(count, keys, seed), {"carry": waits[0], "max_carries": waits[1]}
    loader = PackedLoader(
        dataset(packer, data, batch_size=rows, lanes=lanes, window=WindowConfig(rows=20, **window))
    )
    assert_one_key_each(list(loader), data)


def test_rows_keep_a_second_limit() -> None:
    data = [record for record in RECORDS if len(record["tokens"]) <= 40]
    packer = BestFitDecreasing(
        seq_len=ROW,
        overflow="drop",
        limits=(Capacity({"frames": 40}), Separate("lora", batches=True)),
    )
    batches = list(PackedLoader(dataset(packer, data)))
    assert_one_key_each(batches, data)
    assert all(((batch.document_ids >= 0).sum(1) <= 40).all() for batch in batches)


def test_batches_of_a_common_key_are_full_while_a_rare_one_waits_a_bounded_time() -> None:
    common = [{"tokens": [i] * 16, "lora": 0, "frames": 0} for i in range(4000)]
    data = [{"tokens": [5000] * 16, "lora": 1, "frames": 0}, *common]
    window = WindowConfig(rows=12, max_carries=3)
    batches = list(PackedLoader(dataset(data=data, window=window)))
    sizes = [int((batch.document_ids >= 0).sum()) for batch in batches]
    (rare,) = [k for k, batch in enumerate(batches) if 1 in batch.document_fields["lora"]]
    assert rare < 4 * (3 + 4)  # of 334 batches; the window takes three rounds to grow
    assert sizes[rare] == 16
    assert sum(size < 3 * ROW for size in sizes) == 2  # and the last of the common key


@pytest.mark.parametrize("legs", [[(1, 0, 3), (2, 0, 2), (3, 0, 999)], [(2, 0, 4), (1, 2, 999)]])
def test_a_run_goes_on_with_other_ranks_and_workers(legs: list[tuple[int, int, int]]) -> None:
    def make(topology: Topology) -> PackedDataset:
        return dataset(topology=topology, lanes=4, batch_size=2)

    def of(batch: Any) -> Any:
        return batch.input_ids.tolist(), batch.document_fields["lora"].tolist()

    whole = over_legs(make, [(1, 0, 999)], of)
    assert over_legs(make, legs, of) == whole


@pytest.mark.sampled
def test_a_run_goes_on_after_every_batch() -> None:
    assert_restores_everywhere(lambda: dataset(data=RECORDS[:120]))


def test_a_run_that_goes_on_with_batches_of_one_key_loses_no_token() -> None:
    first = PackedLoader(dataset(BestFitDecreasing(seq_len=ROW, limits=[Separate("lora")])))
    second = PackedLoader(dataset())
    batches = [batch for _, batch in zip(range(7), first, strict=False)]
    with pytest.raises(StateError) as caught:
        second.load_state_dict(first.state_dict())
    assert caught.value.setting == "packer.separate_batches"
    second.load_state_dict(first.state_dict(), allow={"packer"})
    rest = list(second)
    assert all(len({*batch.document_fields["lora"].tolist()}) == 1 for batch in rest)
    ids = np.concatenate([b.input_ids[b.document_ids >= 0] for b in [*batches, *rest]])
    assert sorted(ids.tolist()) == sorted(n for record in RECORDS for n in record["tokens"])


WIDE = {"batch_size": 8, "window": WindowConfig(rows=64)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("keys", [1, 16])
@pytest.mark.parametrize("lanes", [1, 4])
def test_steps_are_estimated_with_batches_that_are_not_full(keys: int, lanes: int) -> None:
    made = dataset(data=records(8000, keys, 7), lanes=lanes, **WIDE)
    estimate = made.estimate_steps()
    assert estimate is not None
    steps = sum(1 for _ in PackedLoader(made))
    assert abs(estimate.steps - steps) <= estimate.error < steps / 5


def test_the_share_of_used_slots_counts_missing_rows() -> None:
    made = dataset(data=records(8000, 16, 7), **WIDE)
    loader = PackedLoader(made)
    list(loader)
    told = made.explain().composition.utilisation
    assert told == pytest.approx(loader.metrics().composition.utilisation, abs=0.02)
    assert told < 0.99


def test_lanes_do_not_empty_their_windows_before_each_deal() -> None:
    data = [{**record, "lora": i % 32} for i, record in enumerate(records(8000, 1, 7))]
    loader = PackedLoader(dataset(data=data, lanes=4, batch_size=4))
    list(loader)
    assert loader.metrics().utilisation > 0.9  # each lane ends with a batch of each key


def test_a_packer_is_rebuilt_with_its_batches() -> None:
    packer = BestFitDecreasing(seq_len=ROW, limits=[Separate("lora", batches=True)])
    assert rebuild_packer(plain(packer.describe())) == packer
    described = BestFitDecreasing(seq_len=ROW, limits=[Separate("lora")]).describe()
    assert "separate_batches" not in described


def test_batches_of_one_key_with_balanced_steps_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        BestFitDecreasing(
            seq_len=ROW, limits=[Separate("lora", batches=True)], choice=Balance("attention")
        )
    assert caught.value.setting == "choice"
    with pytest.raises(TypeError):
        Concat(seq_len=ROW, limits=[Separate("lora")])
