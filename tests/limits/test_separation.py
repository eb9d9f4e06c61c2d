"""Documents of different keys in rows of their own: packers, windows and whole runs."""

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
from streampack.errors import ConfigError, PlanError, StateError
from streampack.forecasts.dry_run import stream_plan
from streampack.packing import Balance, Capacity, FirstFitDecreasing, Separate, check_plan
from streampack.packing.packer import row_limits
from tests.support import packing_reference as reference
from tests.support.drawn import drawn
from tests.support.plans import rows_of
from tests.support.simulated_ranks import over_legs

DOCUMENTS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([0, 1, 2, 7, 2**62])), max_size=60
)
Row = list[tuple[int, int, int]]


def alone(documents: list[tuple[int, int]], seq_len: int, **rules: Any) -> list[Row]:
    """Rows of the quadratic packer for each key, with the documents' own numbers."""
    rows = []
    for key in {key for _, key in documents}:
        own = [i for i, (_, other) in enumerate(documents) if other == key]
        lengths = [documents[i][0] for i in own]
        packed = reference.decreasing(lengths, seq_len, **rules)
        rows += [[(own[d], start, stop) for d, start, stop in row] for row in packed]
    return sorted(rows)


@drawn(300)
@given(
    DOCUMENTS,
    st.integers(4, 40),
    st.sampled_from(["split", "truncate", "drop"]),
    st.booleans(),
    st.integers(0, 3),
)
def test_each_key_is_packed_as_the_quadratic_packer_packs_it_alone(
    documents: list[tuple[int, int]], seq_len: int, overflow: Any, best: bool, extra: int
) -> None:
    kind = BestFitDecreasing if best else FirstFitDecreasing
    packer = kind(
        seq_len=seq_len, overflow=overflow, extra_capacity=extra, limits=[Separate("key")]
    )
    lengths, keys = np.array(documents, dtype=np.int64).reshape(-1, 2).T
    plan = packer.plan(lengths, final=True, seed=0, weights={"key": keys})
    check_plan(plan, lengths)
    row_limits(packer).check(plan, {"key": keys})
    rules = {"best": best, "overflow": overflow, "extra_capacity": extra}
    assert sorted(rows_of(plan)) == alone(documents, seq_len, **rules)


def test_the_golden_plan_with_keys_does_not_change_between_versions() -> None:
    lengths = np.array([9, 5, 9, 20, 7, 7, 16, 2, 2, 3, 8, 6])
    weights = {"key": np.array([5, 0, 5, 0, 5, 0, 0, 9, 9, 0, 5, 5])}
    packer = BestFitDecreasing(seq_len=16, limits=[Separate("key")])
    assert rows_of(packer.plan(lengths, final=True, seed=0, weights=weights)) == [
        [(7, 0, 2), (8, 0, 2)],  # keys with one row come first
        [(3, 0, 16)],
        [(6, 0, 16)],
        [(5, 0, 7), (1, 0, 5), (3, 16, 20)],
        [(9, 0, 3)],
        [(0, 0, 9), (4, 0, 7)],
        [(2, 0, 9), (11, 0, 6)],
        [(10, 0, 8)],
    ]


@drawn(100)
@given(
    st.lists(st.tuples(st.integers(0, 24), st.integers(0, 2), st.integers(0, 9)), max_size=40),
    st.sampled_from([1, 4]),
)
def test_each_row_keeps_a_second_limit_and_the_alignment(
    documents: list[tuple[int, int, int]], align: int
) -> None:
    packer = BestFitDecreasing(
        seq_len=24, overflow="drop", align=align, limits=(Separate("key"), Capacity({"frames": 8}))
    )
    lengths, keys, frames = np.array(documents, dtype=np.int64).reshape(-1, 3).T
    weights = {"key": keys, "frames": frames}
    plan = packer.plan(lengths, final=True, seed=0, weights=weights)
    check_plan(plan, lengths)
    row_limits(packer).check(plan, weights)
    found = sorted(rows_of(plan))
    expected = []
    for key in set(keys.tolist()):
        own = np.flatnonzero(keys == key).tolist()
        sizes = [(documents[i][0], documents[i][2]) for i in own]
        packed = reference.within(sizes, (24, 8), best=True, align=align)
        expected += [[(own[d], start, stop) for d, start, stop in row] for row in packed]
    assert found == sorted(expected)


def drawn_request(count: int, keys: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """Lengths, some above a row of 64, and keys of which some are rare."""
    rng = np.random.default_rng(seed)
    key = np.minimum(rng.geometric(0.3, count) - 1, keys - 1)
    return rng.integers(1, 30, count) * rng.choice([1, 5], count, p=[0.9, 0.1]), {"key": key}


@drawn(60)
@given(
    st.integers(1, 400),
    st.sampled_from([1, 4, 64]),
    st.integers(0, 99),
    st.integers(1, 3),
    st.sampled_from(["split", "truncate", "drop"]),
    st.sampled_from([0.0, 0.5, 0.9]),
)
def test_every_token_goes_once_through_windows_and_rows_have_one_key(
    count: int, keys: int, seed: int, rows: int, overflow: Any, carry: float
) -> None:
    lengths, weights = drawn_request(count, keys, seed)
    packer = BestFitDecreasing(seq_len=64, overflow=overflow, limits=[Separate("key")])
    config = WindowConfig(rows=12, carry=carry, max_carries=3)
    plan = stream_plan(lengths, packer, config, batch_tokens=64 * rows, weights=weights)
    check_plan(plan, lengths)
    row_limits(packer).check(plan, weights)
    over = {"split": 0, "drop": lengths * (lengths > 64), "truncate": np.maximum(lengths - 64, 0)}
    assert plan.dropped.tolist() == (np.zeros(count, dtype=int) + over[overflow]).tolist()


def test_a_document_with_a_key_of_its_own_waits_a_bounded_number_of_rounds() -> None:
    # The first document alone has key 1; all others would fill every batch for ever.
    lengths = np.full(4000, 16, dtype=np.int64)
    keys = np.zeros(4000, dtype=np.int64)
    keys[0] = 1
    packer = BestFitDecreasing(seq_len=64, limits=[Separate("key")])
    config = WindowConfig(rows=8, max_carries=3)
    plan = stream_plan(lengths, packer, config, batch_tokens=64, weights={"key": keys})
    (row,) = np.flatnonzero(plan.document[plan.row_offsets[:-1]] == 0)
    assert row < 8 * (3 + 4)  # of 1,000 rows; the window takes four rounds to grow
    assert plan.row_fill()[row] == 16


LENGTHS, WEIGHTS = drawn_request(300, 9, 5)
RECORDS = [
    {"tokens": [1 + i] * int(LENGTHS[i]), "lora": int(WEIGHTS["key"][i])} for i in range(300)
]


def dataset(packer: Any = None, **changes: Any) -> PackedDataset:
    packer = packer or BestFitDecreasing(seq_len=64, limits=[Separate("lora")])
    given = {"document_fields": {"lora": "int32"}, "batch_size": 2, "topology": Topology()}
    return PackedDataset(**{"source": RECORDS, "packer": packer, **given, **changes})


def keys_of_rows(batch: Any) -> list[set[int]]:
    keys = batch.document_fields["lora"].numpy()
    rows = batch.document_ids.numpy()
    return [set(keys[np.unique(row[row >= 0])].tolist()) for row in rows]


def test_rows_of_a_run_have_one_key_and_batches_have_several() -> None:
    batches = list(PackedLoader(dataset()))
    assert all(len(keys) <= 1 for batch in batches for keys in keys_of_rows(batch))
    assert any(len(set().union(*keys_of_rows(batch))) > 1 for batch in batches)
    ids = np.concatenate([batch.input_ids[batch.document_ids >= 0] for batch in batches])
    assert sorted(ids.tolist()) == sorted(n for record in RECORDS for n in record["tokens"])


@pytest.mark.parametrize("legs", [[(1, 0, 3), (2, 0, 2), (3, 0, 999)], [(2, 0, 4), (1, 2, 999)]])
def test_a_run_with_keys_goes_on_with_other_ranks_and_workers(
    legs: list[tuple[int, int, int]],
) -> None:
    def make(topology: Topology) -> PackedDataset:
        return dataset(topology=topology, lanes=4, batch_size=1)

    def of(batch: Any) -> Any:
        return batch.input_ids.tolist(), batch.document_fields["lora"].tolist()

    whole = over_legs(make, [(1, 0, 999)], of)
    assert over_legs(make, legs, of) == whole


def test_a_run_goes_on_without_keys_and_loses_no_token() -> None:
    first = PackedLoader(dataset(lanes=1))
    second = PackedLoader(dataset(BestFitDecreasing(seq_len=64), lanes=1))
    batches = [batch for _, batch in zip(range(7), first, strict=False)]
    with pytest.raises(StateError) as caught:
        second.load_state_dict(first.state_dict())
    assert caught.value.setting == "packer.separate_by"
    second.load_state_dict(first.state_dict(), allow={"packer"})
    batches += second
    ids = np.concatenate([batch.input_ids[batch.document_ids >= 0] for batch in batches])
    assert sorted(ids.tolist()) == sorted(n for record in RECORDS for n in record["tokens"])


def test_keys_and_balance_go_together() -> None:
    packer = BestFitDecreasing(seq_len=64, limits=[Separate("lora")], choice=Balance("attention"))
    batches = list(PackedLoader(dataset(packer, lanes=2)))
    assert all(len(keys) <= 1 for batch in batches for keys in keys_of_rows(batch))
    assert sum(batch.num_tokens for batch in batches) == LENGTHS.sum()


def test_a_packer_is_rebuilt_with_its_key() -> None:
    packer = BestFitDecreasing(seq_len=64, limits=[Separate("lora")])
    assert rebuild_packer(plain(packer.describe())) == packer
    assert "separate_by" not in BestFitDecreasing(seq_len=64).describe()


@pytest.mark.parametrize(
    "changes",
    [
        {"document_fields": None},
        {"document_fields": {"lora": "float32"}},
        {"packer": BestFitDecreasing(seq_len=64, limits=[Separate("other")])},
    ],
)
def test_a_key_that_is_not_a_declared_integer_field_is_refused(changes: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        dataset(**changes)
    assert caught.value.setting == "limits"


def test_a_negative_key_is_refused_because_it_would_share_rows_with_key_0() -> None:
    with pytest.raises(ConfigError) as caught:
        list(PackedLoader(dataset(source=[*RECORDS, {"tokens": [5, 6], "lora": -1}])))
    assert caught.value.setting == "limits"


@pytest.mark.parametrize(("key", "setting"), [(7, "field"), ("", "field"), ("frames", "limits")])
def test_a_name_that_cannot_be_a_key_is_refused(key: Any, setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BestFitDecreasing(
            seq_len=64, overflow="drop", limits=[Capacity({"frames": 5}), Separate(key)]
        )
    assert caught.value.setting == setting


def test_documents_without_keys_or_beyond_a_row_are_refused() -> None:
    packer = BestFitDecreasing(seq_len=64, limits=[Separate("lora")], overflow="error")
    with pytest.raises(PlanError) as caught:
        packer.plan(np.array([3]), final=True, seed=0)
    assert caught.value.setting == "weights"
    with pytest.raises(PlanError) as caught:
        packer.plan(np.array([3, 65]), final=True, seed=0, weights={"lora": np.array([1, 2])})
    assert caught.value.setting == "overflow"
    assert "Document 1 " in str(caught.value)
