"""A row with several limits: beside plain packers, in windows, and over whole runs."""

from __future__ import annotations

from dataclasses import replace
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
    sources,
)
from streampack.changes.rebuilding import plain, rebuild_packer
from streampack.errors import ConfigError, PlanError, StateError
from streampack.forecasts.dry_run import stream_plan
from streampack.limits.capacity import check_weights, row_weights
from streampack.packing import Balance, Capacity, FirstFitDecreasing, check_plan
from streampack.packing.packer import row_limits
from tests.support import packing_reference as reference
from tests.support.drawn import drawn
from tests.support.plans import rows_of, window_request
from tests.support.simulated_ranks import over_legs

DOCUMENTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, 9)), max_size=60
)


@drawn(300)
@given(
    DOCUMENTS,
    st.integers(4, 64).map(lambda n: 4 * (n // 4)),
    st.lists(st.integers(1, 40), min_size=1, max_size=2),
    st.booleans(),
    st.sampled_from([1, 4]),
)
def test_packers_with_limits_equal_the_quadratic_one(
    documents: list[tuple[int, int, int]], seq_len: int, most: list[int], best: bool, align: int
) -> None:
    kind = BestFitDecreasing if best else FirstFitDecreasing
    capacity = dict(zip(("patches", "frames"), most, strict=False))
    packer = kind(seq_len=seq_len, overflow="drop", limits=[Capacity(capacity)], align=align)
    columns = np.array(documents, dtype=np.int64).reshape(-1, 3).T
    lengths = columns[0]
    weights = dict(zip(("patches", "frames"), columns[1:], strict=True))
    plan = packer.plan(lengths, final=True, seed=0, weights=weights)
    check_plan(plan, lengths)
    check_weights(plan, capacity, weights)
    sizes = [(each[0], *each[1 : 1 + len(most)]) for each in documents]
    assert rows_of(plan) == reference.within(sizes, (seq_len, *most), best=best, align=align)


def test_the_golden_plan_with_two_limits_does_not_change_between_versions() -> None:
    lengths = np.array([9, 5, 9, 5, 7, 7, 16, 2, 2, 20, 3, 8, 6])
    weights = {"patches": np.array([4, 0, 8, 1, 8, 2, 0, 9, 0, 4, 6, 0, 1])}
    found = {}
    for kind in (BestFitDecreasing, FirstFitDecreasing):
        packer = kind(seq_len=16, overflow="drop", limits=[Capacity({"patches": 8})])
        plan = packer.plan(lengths, final=True, seed=0, weights=weights)
        assert plan.dropped.tolist() == [0, 0, 0, 0, 0, 0, 0, 2, 0, 20, 0, 0, 0]
        found[kind] = [[document for document, _, _ in row] for row in rows_of(plan)]
    assert found[BestFitDecreasing] == [[2, 1, 8], [4, 11], [6], [10, 12, 3], [0, 5]]
    assert found[FirstFitDecreasing] == [[2, 1, 8], [4, 11], [6], [10, 5], [0, 12], [3]]


def drawn_request(count: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """Lengths and patches of documents, some of them without images."""
    rng = np.random.default_rng(seed)
    patches = rng.integers(0, 40, count) * rng.integers(0, 2, count)
    return patches // 2 + rng.integers(1, 30, count), {"patches": patches}


@drawn(60)
@given(
    st.integers(1, 400),
    st.integers(0, 99),
    st.integers(1, 3),
    st.sampled_from([None, "attention", "patches"]),
    st.sampled_from([16, 48, 200]),
    st.sampled_from([0.0, 0.5, 0.9]),
)
def test_every_document_goes_once_through_windows_and_no_row_exceeds_a_limit(
    count: int, seed: int, rows: int, balance: Any, most: int, carry: float
) -> None:
    lengths, weights = drawn_request(count, seed)
    capacity = {"patches": most}
    packer = BestFitDecreasing(seq_len=64, overflow="drop",
        limits=[Capacity(capacity)], choice=balance and Balance(balance),
    )  # fmt: skip
    config = WindowConfig(rows=12, carry=carry, max_carries=3)
    plan = stream_plan(
        lengths, packer, config, batch_tokens=64 * rows, weights=weights,
    )  # fmt: skip
    check_plan(plan, lengths)
    check_weights(plan, capacity, weights)
    assert plan.dropped.tolist() == np.where(weights["patches"] > most, lengths, 0).tolist()


def test_rows_that_are_full_of_patches_count_as_full() -> None:
    # One row of 4 tokens with all its patches, one of 12 of 16 tokens without: the first one goes.
    packer = BestFitDecreasing(seq_len=16, overflow="drop", limits=[Capacity({"patches": 8})])
    request = window_request(
        [4, 14, 14, 14], seq_len=16, batch_tokens=16, carry=0.9, limits=row_limits(packer),
        weights={"patches": np.array([8, 1, 1, 1])},
    )  # fmt: skip
    found = packer.plan_window(request)
    assert [rows_of(found.plan)[r] for r in found.rows] == [[(0, 0, 4)]]
    loads = Capacity({"patches": 8}).loads(found.plan, request.weights)
    assert sorted(loads.tolist()) == [14, 14, 14, 16]  # of the fullest limit


def test_balance_by_patches_levels_the_patches_of_the_steps() -> None:
    from streampack.forecasts.measuring import measure_balance

    packer = BestFitDecreasing(seq_len=512, overflow="drop", choice=Balance("patches"))
    window = WindowConfig().resolve(packer, 512)
    lengths, weights = drawn_request(4000, 0)
    schedule = measure_balance(lengths, packer, window, batch_tokens=512, weights=weights)
    assert schedule.kind == "patches"
    steps = []
    for balance in (None, schedule):
        ranks = []
        for rank in range(8):
            lengths, weights = drawn_request(30_000, 1 + rank)
            plan = stream_plan(
                lengths, packer, window, batch_tokens=512, seed=rank, balance=balance,
                weights=weights,
            )  # fmt: skip
            ranks.append(row_weights(plan, weights["patches"])[200:900])
        patches = np.array(ranks)
        steps.append(float((patches.max(axis=0) / patches.mean(axis=0)).mean()))
    without, with_it = steps
    assert without > 1.1
    assert with_it < 1.03


LENGTHS, WEIGHTS = drawn_request(300, 5)
RECORDS = [
    {"tokens": [1 + i] * int(LENGTHS[i]), "frames": int(WEIGHTS["patches"][i])} for i in range(300)
]
CAPACITY = {"frames": 38}


def dataset(packer: Any = None, **settings: Any) -> PackedDataset:
    packer = packer or BestFitDecreasing(seq_len=64, overflow="drop", limits=[Capacity(CAPACITY)])
    given = {"document_fields": {"frames": "int32"}, "batch_size": 2, "topology": Topology()}
    return PackedDataset(**{"source": RECORDS, "packer": packer, **given, **settings})


def frames_of_rows(batch: Any) -> list[int]:
    rows = batch.document_ids.numpy()
    own = batch.document_fields["frames"].numpy()
    return [int(own[np.unique(row[row >= 0])].sum()) for row in rows]


def test_any_integer_field_limits_rows_and_larger_documents_are_dropped_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = PackedLoader(dataset())
    batches = list(loader)
    frames = [own for batch in batches for own in frames_of_rows(batch)]
    assert max(frames) <= CAPACITY["frames"]
    over = [record for record in RECORDS if record["frames"] > CAPACITY["frames"]]
    assert over
    assert sum(frames) == sum(r["frames"] for r in RECORDS) - sum(r["frames"] for r in over)
    assert loader.metrics().composition.documents_lost == len(over)
    number = RECORDS.index(over[0])
    assert f"dropped: item {number} of the list has 39 frames, a row has 38" in caplog.text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("legs", [[(1, 0, 3), (2, 0, 2), (3, 0, 99)], [(2, 0, 4), (1, 2, 99)]])
def test_a_run_with_limits_goes_on_with_other_ranks_and_workers(
    legs: list[tuple[int, int, int]],
) -> None:
    def make(topology: Topology) -> PackedDataset:
        return dataset(topology=topology, lanes=4, batch_size=1)

    def of(batch: Any) -> Any:
        return batch.input_ids.tolist(), batch.document_fields["frames"].tolist()

    whole = over_legs(make, [(1, 0, 999)], of)
    assert over_legs(make, legs, of) == whole


def test_a_run_goes_on_with_another_capacity_and_loses_no_document() -> None:
    def loader(**capacity: int) -> PackedLoader:
        packer = BestFitDecreasing(seq_len=64, overflow="drop", limits=[Capacity(capacity)])
        return PackedLoader(dataset(packer, lanes=1))

    first, second = loader(frames=50), loader(frames=90)
    batches = [batch for _, batch in zip(range(7), first, strict=False)]
    with pytest.raises(StateError) as caught:
        second.load_state_dict(first.state_dict())
    assert caught.value.setting == "packer.capacity.frames"
    second.load_state_dict(first.state_dict(), allow={"packer"})
    batches += second
    ids = np.concatenate([batch.input_ids[batch.document_ids >= 0] for batch in batches])
    assert sorted(ids.tolist()) == sorted(n for record in RECORDS for n in record["tokens"])


def test_estimate_counts_the_rows_that_the_limit_asks_for() -> None:
    tight = BestFitDecreasing(seq_len=512, overflow="drop", limits=[Capacity({"frames": 45})])
    steps = []
    for packer in (tight, replace(tight, limits=())):
        loader = PackedLoader(dataset(packer, lanes=1))
        estimate = loader.estimate_steps()
        assert estimate is not None
        steps.append(len(list(loader)))
        assert abs(estimate.steps - steps[-1]) <= estimate.error
    assert steps[0] > 1.5 * steps[1]


def test_a_packer_is_rebuilt_with_its_capacity() -> None:
    packer = BestFitDecreasing(seq_len=64, overflow="drop", limits=[Capacity(CAPACITY)])
    assert rebuild_packer(plain(packer.describe())) == packer
    assert "capacity" not in replace(packer, limits=()).describe()


def test_documents_without_weights_are_refused() -> None:
    packer = BestFitDecreasing(seq_len=64, overflow="drop", limits=[Capacity(CAPACITY)])
    with pytest.raises(PlanError) as caught:
        packer.plan(np.array([3]), final=True, seed=0)
    assert caught.value.setting == "weights"


def test_a_document_beyond_a_limit_is_an_error_under_overflow_error() -> None:
    packer = BestFitDecreasing(seq_len=64, overflow="error", limits=[Capacity(CAPACITY)])
    with pytest.raises(PlanError) as caught:
        list(PackedLoader(dataset(packer)))
    over = [i for i, r in enumerate(RECORDS) if r["frames"] > CAPACITY["frames"]]
    assert caught.value.document in {f"item {number} of the list" for number in over}
    with pytest.raises(PlanError) as caught:
        packer.plan(np.array([3, 4]), final=True, seed=0, weights={"frames": np.array([1, 99])})
    assert caught.value.setting == "overflow"


def test_trees_with_a_limit_are_refused() -> None:
    packer = BestFitDecreasing(seq_len=64, overflow="drop", limits=[Capacity(CAPACITY)])
    records = [{"tokens": [[1, 2], [1, 3]], "frames": 1}] * 9
    with pytest.raises(ConfigError) as caught:
        dataset(packer, source=sources.Items(records, tokens="tokens"), layout="tree")
    assert caught.value.setting == "layout"
