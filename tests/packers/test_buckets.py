"""Buckets: algorithm 1 against the obvious one, and the rows that a schedule gets."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.errors import ConfigError
from streampack.packers.bucket_rows import Waiting, fill_batches
from streampack.packers.bucket_shapes import Shapes
from streampack.packers.curriculum import scheduled_buckets
from streampack.packing import Buckets, Plan, check_plan
from streampack.packing.rng import permutation
from tests.support import packing_reference as reference
from tests.support.bucket_reference import scheduled_rows
from tests.support.drawn import drawn
from tests.support.plans import PATIENT, rows_of, window_request

LENGTHS = st.lists(
    st.one_of(st.integers(0, 12), st.integers(0, 40), st.integers(0, 400)), max_size=60
)
SEQ_LENS = st.lists(st.integers(2, 64), min_size=1, max_size=5, unique=True).map(
    lambda sizes: tuple(sorted(sizes))
)
THRESHOLD = st.sampled_from([0.0, 0.05, 0.25, 0.5, 1.0])


def planned(packer: Any, lengths: list[int], seed: int = 0) -> Plan:
    array = np.array(lengths, dtype=np.int64)
    plan: Plan = packer.plan(array, final=True, seed=seed)
    check_plan(plan, array)
    return plan


@given(LENGTHS, SEQ_LENS, THRESHOLD)
@drawn(400)
def test_algorithm_1_equals_the_quadratic_one_row_for_row(
    lengths: list[int], seq_lens: tuple[int, ...], threshold: float
) -> None:
    plan = planned(Buckets(seq_lens=seq_lens, padding_threshold=threshold), lengths)
    expected = reference.buckets(lengths, seq_lens, threshold)
    assert list(zip(plan.seq_len.tolist(), rows_of(plan), strict=True)) == expected


def test_the_golden_bucket_plan_does_not_change_between_versions() -> None:
    plan = planned(Buckets(seq_lens=(8, 16)), [5, 20, 3, 8, 8, 1, 40, 7])
    assert plan.seq_len.tolist() == GOLDEN_BUCKETS
    assert rows_of(plan) == GOLDEN_ROWS


GOLDEN_BUCKETS = [16, 16, 16, 8, 8, 8, 8, 8, 8]
GOLDEN_ROWS = [
    [(6, 0, 16)],
    [(6, 16, 32)],
    [(1, 0, 16)],
    [(3, 0, 8)],
    [(4, 0, 8)],
    [(6, 32, 40)],
    [(7, 0, 7), (5, 0, 1)],
    [(0, 0, 5), (2, 0, 3)],
    [(1, 16, 20)],
]


def test_the_threshold_decides_between_cutting_and_padding() -> None:
    lengths = [90, 60, 60]
    cut = planned(Buckets(seq_lens=(100,), padding_threshold=0.05), lengths)
    pad = planned(Buckets(seq_lens=(100,), padding_threshold=0.5), lengths)
    assert rows_of(cut) == [
        [(0, 0, 90), (2, 0, 10)],
        [(1, 0, 60), (2, 10, 50)],
        [(2, 50, 60)],
    ]
    assert rows_of(pad) == [[(0, 0, 90)], [(1, 0, 60)], [(2, 0, 60)]]


def test_shares_are_measured_by_algorithm_1() -> None:
    lengths = np.array([8] * 30 + [16] * 5 + [100], dtype=np.int64)
    packer = Buckets(seq_lens=(8, 16)).with_sample(lengths)
    plan = packer.plan(lengths, final=True, seed=0)
    long = plan.seq_len[plan.seq_len == 16].sum() / plan.seq_len.sum()
    assert packer.shares == (round(1 - long, 6), round(long, 6))
    with pytest.raises(ConfigError):
        packer.with_sample(np.array([], dtype=np.int64))
    with pytest.raises(ConfigError):
        Buckets().curriculum  # noqa: B018


# ---------------------------------------------------------------------- rows of a schedule


def scheduled(packer: Buckets, lengths: list[int], **changes: Any) -> tuple[Plan, np.ndarray]:
    found = packer.plan_window(window_request(lengths, seq_len=packer.seq_lens[-1], **changes))
    assert found.rows.tolist() == list(range(found.plan.num_rows))
    return found.plan, found.batches


def rounds_left(must_go: np.ndarray) -> np.ndarray:
    return np.where(must_go, 0, PATIENT)


@given(
    st.lists(st.one_of(st.integers(0, 12), st.integers(0, 60), st.integers(9, 12)), max_size=60),
    st.lists(st.sampled_from([False, False, True]), min_size=60, max_size=60),
    st.lists(st.integers(2, 40), min_size=1, max_size=4, unique=True).map(sorted),
    st.lists(st.integers(0, 3), min_size=40, max_size=40),
    THRESHOLD,
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 5),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.lists(st.integers(1, 6), min_size=4, max_size=4),
    st.just([]) | st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=9),
)
@drawn(400)
def test_the_batches_of_a_schedule_equal_the_obvious_ones_row_for_row(
    lengths: list[int],
    flags: list[bool],
    seq_lens: list[int],
    turns: list[int],
    threshold: float,
    count: int,
    final: bool,
    seed: int,
    some_aligns: list[int],
    some_rows: list[int],
    some_levels: list[int],
) -> None:
    must_go = flags[: len(lengths)]
    buckets = [turn % len(seq_lens) for turn in turns]
    order = permutation(len(lengths), seed)
    divisors = [[n for n in range(1, size + 1) if size % n == 0] for size in seq_lens]
    aligns = [own[align % len(own)] for own, align in zip(divisors, some_aligns, strict=False)]
    sizes = np.array(seq_lens, dtype=np.int64)
    rows_of = np.array(some_rows[: len(sizes)], dtype=np.int64)
    most = int(rows_of[buckets].sum())
    levels = (some_levels * most)[:most]
    if levels:
        order = np.argsort(lengths, kind="stable").repeat(2)[1:]
    found = fill_batches(
        Waiting(np.array(lengths, dtype=np.int64), np.array(must_go, dtype=np.bool_), order),
        Shapes(sizes, rows_of, np.array(aligns)), np.array(buckets, dtype=np.int8),
        count, threshold, final, np.array(levels, dtype=np.uint32),
    )  # fmt: skip
    expected = scheduled_rows(
        lengths, must_go, order.tolist(), seq_lens, buckets,
        count=count, rows_of=rows_of, aligns=aligns, threshold=threshold, final=final,
        levels=levels or None,
    )  # fmt: skip
    segments = list(
        zip(found.document.tolist(), found.start.tolist(), found.stop.tolist(), strict=True)
    )
    ends = found.row_offsets.tolist()
    rows = [segments[low:high] for low, high in pairwise(ends)]
    assert rows == [row for batch in expected for row in batch]
    assert np.diff(found.batches).tolist() == list(map(len, expected))


@given(
    st.lists(st.one_of(st.integers(0, 12), st.integers(0, 200)), max_size=80),
    st.lists(st.booleans(), min_size=80, max_size=80),
    st.lists(st.integers(2, 40), min_size=1, max_size=4, unique=True).map(sorted),
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
    THRESHOLD,
    st.floats(0, 1),
    st.integers(0, 40),
)
@drawn(400)
def test_batches_follow_the_schedule_and_only_tails_stay(
    lengths: list[int],
    flags: list[bool],
    seq_lens: list[int],
    shares: list[float],
    threshold: float,
    least: float,
    rotation: int,
) -> None:
    packer = Buckets(
        seq_lens=tuple(seq_lens), padding_threshold=threshold, shares=shares[: len(seq_lens)]
    )
    must_go = np.array(flags[: len(lengths)], dtype=np.bool_)
    carry = 1 - least
    wanted = math.ceil((1 - carry) * sum(lengths))
    batch_tokens = 2 * seq_lens[-1]
    plan, batches = scheduled(
        packer, lengths, rounds_left=rounds_left(must_go), carry=carry, step=rotation
    )
    taken = np.zeros(len(lengths), dtype=np.int64)
    np.add.at(taken, plan.document, plan.stop - plan.start)
    check_plan(plan, taken)  # heads without gaps: only tails stay
    assert (taken <= lengths).all()
    assert (taken[must_go] == np.array(lengths, dtype=np.int64)[must_go]).all()
    turns = scheduled_buckets(packer.curriculum, 1, rotation, len(batches) - 1)
    for b, bucket in enumerate(turns):
        rows = range(batches[b], batches[b + 1])
        assert len(rows) >= 1
        assert set(plan.seq_len[rows]) == {seq_lens[bucket]}
        assert len(rows) == batch_tokens // seq_lens[bucket] or taken.sum() == sum(lengths)
    # Rows are filled up to the threshold while there are documents.
    smallest_batch = min(batch_tokens // seq_len * seq_len for seq_len in seq_lens)
    full = wanted // batch_tokens * smallest_batch
    assert taken.sum() >= min(full * (1 - threshold), sum(lengths))


# ---------------------------------------------------------------------- batches that ranks share


def test_every_rank_holds_the_same_tokens_and_pieces_are_whole_parts_of_all() -> None:
    packer = Buckets(seq_lens=(16, 32, 128), cp=(1, 2, 8), shares=(0.2, 0.3, 0.5))
    lengths = np.random.default_rng(4).integers(1, 140, 1500).tolist()
    plan, batches = scheduled(packer, lengths, batch_tokens=256, carry=0.2)
    check_plan(plan, np.bincount(plan.document, plan.stop - plan.start, len(lengths)).astype(int))
    used = np.zeros(3)
    for low, high in pairwise(batches):
        (size,) = {*plan.seq_len[low:high].tolist()}
        bucket = packer.seq_lens.index(size)
        degree = packer.cp[bucket]
        assert (high - low) * size == 256 * degree / 8
        used[bucket] += (high - low) * size
        for row in range(low, high):
            pieces = slice(*plan.row_offsets[row : row + 2])
            held = (plan.stop - plan.start + plan.pad_after)[pieces]
            assert held.sum() <= size
            assert not (held % (2 * degree if degree > 1 else 1)).any()
    np.testing.assert_allclose(used / used.sum(), packer.shares, atol=0.02)


def test_the_offline_algorithm_pads_pieces_by_bucket_too() -> None:
    packer = Buckets(seq_lens=(16, 128), cp=(1, 8))
    lengths = np.random.default_rng(5).integers(1, 300, 400)
    plan = packer.plan(lengths, final=True, seed=0)
    check_plan(plan, lengths)
    size = np.repeat(plan.seq_len, np.diff(plan.row_offsets))
    held = plan.stop - plan.start + plan.pad_after
    assert not (held[size == 128] % 16).any()
    assert not plan.pad_after[size == 16].any()


def test_degrees_that_cannot_be_are_refused() -> None:
    for cp in ((1,), (1, 2, 3, 4), (4, 1), (2, 3), (0, 1), (1, 1.5), 4, "14", (1, 128)):
        with pytest.raises(ConfigError) as refused:
            Buckets(seq_lens=(16, 128), cp=cp)
        assert refused.value.setting == "cp"
    with pytest.raises(ConfigError) as refused:
        Buckets(seq_lens=(64, 128), cp=(1, 8))
    assert refused.value.setting == "batch_tokens"
    assert Buckets(seq_lens=(64, 128), cp=(1, 8), batch_tokens=512).cp == (1, 8)
