"""Balanced work: ranks in step have equally much to attend to, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streampack import (
    BestFitDecreasing,
    Concat,
    PackedDataset,
    PackedLoader,
    Pad,
    TokenRules,
    Topology,
    WindowConfig,
    sources,
)
from streampack.errors import StateError
from streampack.forecasts.dry_run import stream_plan
from streampack.forecasts.measuring import measure_balance
from streampack.limits.balancing import Balance, choose_by_cost, order_by_cost
from streampack.packers.kinds import packer_kinds, with_rows
from streampack.packing import Packer, Plan, Seamless, check_plan
from tests.support.corpora import write_mds
from tests.support.drawn import drawn
from tests.support.forged import sign
from tests.support.memory_source import MemorySource

SEQ_LEN = 4096


def documents(count: int, seed: int, longest: int = 1 << 30) -> NDArray[np.int64]:
    drawn = np.random.default_rng(seed).lognormal(4.5, 1.6, count)
    return np.clip(drawn.astype(np.int64), 1, longest)


def measured(packer: Packer, rows: int = 1) -> tuple[WindowConfig, Balance]:
    config = WindowConfig().resolve(packer, rows * SEQ_LEN)
    sample = documents(4096, seed=0)
    return config, measure_balance(sample, packer, config, batch_tokens=rows * SEQ_LEN)


def squares(plan: Plan, rows: int) -> NDArray[np.int64]:
    size = plan.stop - plan.start
    per_row = np.add.reduceat(size * size, plan.row_offsets[:-1])
    return per_row[: len(per_row) // rows * rows].reshape(-1, rows).sum(axis=1)


def slowest_over_mean(costs: NDArray[np.int64], slots: int, width: int) -> float:
    """Return the slowest rank's cost (with `width`) over the mean, averaged over the steps."""
    total = costs + 12 * width * slots
    return float((total.max(axis=0) / total.mean(axis=0)).mean())


# Width 512 with rows of 4,096 has the ratio of width 4,096 with rows of 32,768.
@pytest.mark.parametrize(
    ("width", "rows"),
    [
        (512, 4),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((0, 1), (512, 1), (0, 4))),
    ],
)
def test_the_extra_work_of_the_slowest_of_16_ranks_shrinks_to_a_fifth(
    rows: int, width: int
) -> None:
    packer = BestFitDecreasing(seq_len=SEQ_LEN)
    config, balance = measured(packer, rows)
    excess = []
    for used in (None, balance):
        costs = []
        for rank in range(16):
            plan = stream_plan(
                documents(rows * 10_000, seed=100 + rank),
                packer, config, batch_tokens=rows * SEQ_LEN, seed=rank, balance=used,
            )  # fmt: skip
            costs.append(squares(plan, rows)[256:500] if rows == 1 else squares(plan, rows)[64:400])
        steps = min(map(len, costs))
        assert steps > 150
        steady = np.array([cost[:steps] for cost in costs])
        excess.append(slowest_over_mean(steady, rows * SEQ_LEN, width) - 1)
    before, after = excess
    assert after <= before / 5
    if width and rows == 1:
        assert before >= 0.2
        assert after <= 0.05


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [1, 8])
def test_every_tenth_of_a_balanced_run_has_the_inputs_length_distribution(rows: int) -> None:
    packer = BestFitDecreasing(seq_len=SEQ_LEN)
    config, balance = measured(packer, rows)
    lengths = documents(300_000, seed=2)
    plan = stream_plan(lengths, packer, config, batch_tokens=rows * SEQ_LEN, balance=balance)
    # By tokens: by documents, a few rows full of the shortest ones would decide.
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, 201)[1:]))
    size = plan.stop - plan.start
    class_of = np.searchsorted(edges, lengths[plan.document])
    whole = np.cumsum(np.bincount(class_of, weights=size, minlength=len(edges))) / size.sum()
    for tenth in np.array_split(np.arange(plan.num_rows), 10):
        part = slice(plan.row_offsets[tenth[0]], plan.row_offsets[tenth[-1] + 1])
        of_class = np.bincount(class_of[part], weights=size[part], minlength=len(edges))
        # Tenths of the input itself, in order of arrival, differ from the whole by up to 0.03.
        assert np.abs(np.cumsum(of_class) / size[part].sum() - whole).max() <= 0.04


ONE_OF_EACH = [with_rows(kind, 64) for kind in packer_kinds().values()]
PACKERS: list[Packer] = [
    *(packer for packer in ONE_OF_EACH if len(packer.seq_lens) == 1),
    Concat(seq_len=64, atom=16),
    Pad(seq_len=64, atom=16),
    Pad(seq_len=64, atom=128),
]


@pytest.mark.parametrize("packer", PACKERS, ids=lambda packer: type(packer).__name__)
@drawn(40)
@given(
    lengths=st.lists(st.integers(1, 1500), min_size=1, max_size=300),
    rows=st.integers(1, 3),
    quantiles=st.lists(st.integers(0, 64), min_size=1, max_size=9),
    carry=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_every_token_is_placed_once_under_any_schedule(
    packer: Packer, lengths: list[int], rows: int, quantiles: list[int], carry: float
) -> None:
    values = np.array(lengths, dtype=np.int64)
    config = WindowConfig(rows=16, carry=carry, max_carries=3)
    plan = stream_plan(
        values,
        packer,
        config,
        batch_tokens=rows * 64,
        balance=Balance(quantiles=tuple(sorted(quantiles))),
    )
    if not isinstance(packer, Seamless):  # after a round it may repeat tokens of no segment
        check_plan(plan, values)
    lost = plan.dropped.sum()
    assert (plan.stop - plan.start - plan.overlap).sum() + lost == values.sum()


@drawn(200)
@given(
    costs=st.lists(st.integers(0, 50), min_size=1, max_size=40),
    data=st.data(),
)
def test_a_selection_is_closed_and_holds_all_overdue_rows(costs: list[int], data: Any) -> None:
    rows = len(costs)
    above = [data.draw(st.sampled_from([-1, *range(row)])) for row in range(rows)]
    offsets = np.concatenate([[0], np.cumsum([parent >= 0 for parent in above])]).astype(np.int64)
    before = np.array([parent for parent in above if parent >= 0], dtype=np.int64)
    count = data.draw(st.integers(1, rows))
    must_go = data.draw(st.integers(0, count))
    wanted = np.array(data.draw(st.lists(st.integers(0, 60), min_size=count, max_size=count)))
    cost = np.array(costs, dtype=np.int64)
    pool = np.argsort(cost, kind="stable")
    forced = np.arange(must_go, dtype=np.int64)
    chosen = choose_by_cost(pool, cost, forced, wanted, offsets, before)
    assert len(chosen) == len(set(chosen.tolist())) == count
    assert set(range(must_go)) <= set(chosen.tolist())
    assert all(above[row] < 0 or above[row] in chosen for row in chosen)
    ordered = order_by_cost(chosen, cost, wanted)
    assert sorted(ordered.tolist()) == sorted(chosen.tolist())
    by_place = cost[ordered][np.argsort(wanted, kind="stable")]
    assert (np.diff(by_place) >= 0).all()


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_the_schedule_is_a_function_of_the_step_and_covers_all_costs_evenly(rows: int) -> None:
    balance = Balance(quantiles=tuple(range(0, 129 * 1000, 1000)))
    whole = balance.wanted(5, 64, rows)
    parts = np.concatenate([balance.wanted(5, 20, rows), balance.wanted(25, 44, rows)])
    assert whole.tolist() == parts.tolist()
    even = (np.arange(64 * rows) + 0.5) / (64 * rows) * 128_000
    assert np.abs(np.sort(whole) - even).max() <= 128_000 / 32 / rows
    if rows % 2 == 0:  # strata in pairs, one mirrored
        assert np.ptp(whole.reshape(64, rows).sum(axis=1)) <= rows


def global_sequence(source: Any, ranks: int, **settings: Any) -> list[tuple[int, int, list[int]]]:
    batches = []
    for rank in range(ranks):
        dataset = PackedDataset(source, lanes=4, topology=Topology(rank, ranks), **settings)
        batches += [
            (batch.step, batch.lane, batch.input_ids.ravel().tolist())
            for batch in PackedLoader(dataset)
            if batch.num_documents  # ranks that do not know of each other end apart
        ]
    return sorted(batches)


def test_the_global_sequence_is_the_same_on_any_ranks_and_holds_every_document(
    tmp_path: Path,
) -> None:
    lengths = documents(400, seed=5, longest=200)
    texts = [np.full(n, 1 + i, dtype=np.uint16) for i, n in enumerate(lengths)]
    source = sources.MDS(write_mds(tmp_path, texts))
    one, two, four = (
        global_sequence(
            source,
            ranks,
            packer=BestFitDecreasing(seq_len=64, choice=Balance("attention")),
            batch_size=2,
            token_rules=TokenRules(pad_id=0, eos_id=0),
        )
        for ranks in (1, 2, 4)
    )
    assert one == two == four
    ids = np.concatenate([ids for _, _, ids in one])
    assert np.bincount(ids, minlength=401)[1:401].tolist() == lengths.tolist()


def test_a_run_goes_on_with_the_costs_it_has_measured_and_not_without_a_balance() -> None:
    values = documents(3000, seed=6, longest=300)
    source = MemorySource([[np.ones(n, dtype=np.uint16) for n in values]])

    def loader(balance: Any) -> PackedLoader:
        packer = BestFitDecreasing(seq_len=128, choice=balance and Balance(balance))
        dataset = PackedDataset(source, packer=packer, lanes=2, topology=Topology())
        return PackedLoader(dataset)

    first = loader("attention")
    for _ in zip(range(20), first, strict=False):
        pass
    state = first.state_dict()
    described = state["fingerprint"]["balance"]
    assert described["quantiles"] == sorted(described["quantiles"])
    assert described["quantiles"][-1] > described["quantiles"][0] > 0
    described["quantiles"][-1] += 1  # as if the sample had been another one
    sign(state)
    again = loader("attention")
    again.load_state_dict(state)
    assert again.state_dict()["fingerprint"]["balance"] == described
    with pytest.raises(StateError, match="balance"):
        loader(None).load_state_dict(state)
