"""Golden plans: ties of lengths, cut and dropped tokens, and choices by the seed.

Whoever changes one of them on purpose bumps the packer's `revision`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from streampack.groups.whole_groups import WholeGroups
from streampack.limits.loss_tokens import LOSS_TOKENS
from streampack.packing import Balance, BestFitDecreasing, Buckets, FirstFitDecreasing, Seamless
from streampack.packing.request import MemberLengths
from tests.support.packing_reference import Row
from tests.support.plans import planned, rows_of, window_request

TIED = [9, 5, 9, 5, 7, 7, 16, 11, 2, 2, 5, 20, 3, 8, 8, 1, 40, 7]
APART = [6, 12, 1, 9]  # first-fit and best-fit differ
GOLDEN: list[tuple[Any, list[int], list[Row]]] = [
    (FirstFitDecreasing(seq_len=16), APART, [
        [(1, 0, 12), (2, 0, 1)],
        [(3, 0, 9), (0, 0, 6)],
    ]),
    (BestFitDecreasing(seq_len=16), APART, [
        [(1, 0, 12)],
        [(3, 0, 9), (0, 0, 6), (2, 0, 1)],
    ]),
    (FirstFitDecreasing(seq_len=16, extra_capacity=3), TIED, [
        [(6, 0, 16)],
        [(11, 0, 16)],
        [(16, 0, 16)],
        [(16, 16, 32)],
        [(7, 0, 11), (13, 0, 5)],
        [(0, 0, 9), (2, 0, 7)],
        [(14, 0, 8), (16, 32, 40)],
        [(4, 0, 7), (5, 0, 7), (1, 0, 2)],
        [(17, 0, 7), (3, 0, 5), (10, 0, 4)],
        [(11, 16, 20)],
    ]),
    (BestFitDecreasing(seq_len=16, extra_capacity=3, protect_short=True), TIED, [
        [(6, 0, 16)],
        [(11, 0, 16)],
        [(16, 0, 16)],
        [(16, 16, 32)],
        [(7, 0, 11), (13, 0, 5)],
        [(0, 0, 9), (2, 0, 7)],
        [(14, 0, 8), (16, 32, 40)],
        [(4, 0, 7), (5, 0, 7), (1, 0, 2)],
        [(17, 0, 7), (3, 0, 5), (10, 0, 4)],
        [(11, 16, 20), (12, 0, 3), (8, 0, 2), (9, 0, 2), (15, 0, 1)],
    ]),
    (Seamless(seq_len=16, extra_capacity=2), TIED, [
        [(6, 0, 16)],
        [(11, 0, 16)],
        [(16, 0, 16)],
        [(16, 12, 28)],
        [(16, 24, 40)],
        [(7, 0, 11), (4, 0, 5)],
        [(0, 0, 9), (2, 0, 7)],
        [(13, 0, 8), (14, 0, 8)],
        [(5, 0, 7), (17, 0, 7), (11, 16, 18)],
        [(1, 0, 5), (3, 0, 5), (10, 0, 5), (12, 0, 1)],
        [(9, 0, 2), (15, 0, 1)],
    ]),
    (Buckets(seq_lens=(8, 16), padding_threshold=0), TIED, [
        [(16, 0, 16)],
        [(16, 16, 32)],
        [(11, 0, 16)],
        [(6, 0, 16)],
        [(7, 0, 11), (1, 0, 5)],
        [(0, 0, 9), (4, 0, 7)],
        [(2, 0, 9), (5, 0, 7)],
        [(13, 0, 8)],
        [(14, 0, 8)],
        [(16, 32, 40)],
        [(17, 0, 7), (15, 0, 1)],
        [(3, 0, 5), (12, 0, 3)],
        [(10, 0, 5), (8, 0, 2), (9, 0, 1)],
        [(11, 16, 20), (9, 1, 2)],
    ]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("packer", "lengths", "golden"), GOLDEN, ids=lambda value: type(value).__name__
)
def test_golden_plans_do_not_change_between_versions(
    packer: Any, lengths: list[int], golden: list[Row]
) -> None:
    assert rows_of(planned(packer, lengths, seed=1)) == golden


def test_the_golden_batches_of_a_schedule_do_not_change_between_versions() -> None:
    packer = Buckets(seq_lens=(8, 16), shares=(0.5, 0.5))
    # 96 of the 165 tokens may not stay.
    found = packer.plan_window(window_request(TIED, seq_len=16, carry=0.42))
    assert found.batches.tolist() == BATCHES
    assert found.rows.tolist() == list(range(BATCHES[-1]))
    assert rows_of(found.plan) == ROWS


BATCHES = [0, 4, 8, 10]
ROWS = [
    [(17, 0, 7), (15, 0, 1)],
    [(13, 0, 8)],
    [(14, 0, 8)],
    [(1, 0, 5), (12, 0, 3)],
    [(4, 0, 7), (6, 0, 1)],
    [(5, 0, 7), (6, 1, 2)],
    [(3, 0, 5), (8, 0, 2), (6, 2, 3)],
    [(10, 0, 5), (9, 0, 2), (6, 3, 4)],
    [(11, 0, 16)],
    [(16, 0, 16)],
]


def test_the_golden_batches_that_ranks_share_do_not_change_between_versions() -> None:
    packer = Buckets(seq_lens=(8, 16), cp=(1, 2), choice=Balance("attention"), shares=(0.5, 0.5))
    found = packer.plan_window(window_request(TIED, seq_len=16, carry=0.42))
    assert found.batches.tolist() == [0, 2, 4, 6, 8]
    assert rows_of(found.plan) == [
        [(3, 0, 5), (12, 0, 3)],
        [(1, 0, 5), (8, 0, 2), (15, 0, 1)],
        [(13, 0, 8)],
        [(14, 0, 8)],
        [(7, 0, 11), (9, 0, 2)],
        [(16, 0, 16)],
        [(11, 0, 16)],
        [(0, 0, 9), (11, 16, 20)],
    ]


def test_the_golden_rows_of_equal_loss_tokens_do_not_change_between_versions() -> None:
    packer = BestFitDecreasing(seq_len=16, overflow="truncate", choice=Balance("loss"))
    weights = {LOSS_TOKENS: np.arange(len(TIED), dtype=np.int64) * 3 % 11}
    plan = packer.plan(np.array(TIED), final=True, seed=0, weights=weights)
    sums = np.add.reduceat(weights[LOSS_TOKENS][plan.document], plan.row_offsets[:-1])
    assert rows_of(plan) == EVEN
    assert sums.tolist() == [7, 0, 4, 13, 12, 10, 15, 13, 11]


EVEN: list[Row] = [
    [(6, 0, 16)],
    [(11, 0, 16)],
    [(16, 0, 16)],
    [(7, 0, 11), (1, 0, 5)],
    [(17, 0, 7), (9, 0, 2)],
    [(2, 0, 9), (5, 0, 7)],
    [(13, 0, 8), (14, 0, 8)],
    [(4, 0, 7), (10, 0, 5), (12, 0, 3), (15, 0, 1)],
    [(0, 0, 9), (3, 0, 5), (8, 0, 2)],
]

GROUPS = [[9, 5], [9], [5, 7, 7], [16, 11, 2], [2, 5], [8, 8, 1], [12, 12], [3]]


def test_the_golden_batches_of_whole_groups_do_not_change_between_versions() -> None:
    sizes = [len(group) for group in GROUPS]
    members = MemberLengths(
        np.array([n for group in GROUPS for n in group], dtype=np.int64),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )
    lengths = [sum(group) for group in GROUPS]
    found = WholeGroups(seq_len=16).plan_window(
        window_request(lengths, seq_len=16, batch_tokens=48, final=True, seed=3, members=members)
    )
    rows, batches = rows_of(found.plan), found.batches
    assert [[rows[r] for r in found.rows[low:high]] for low, high in pairwise(batches)] == [
        [
            [(2, 5, 12), (2, 12, 19), (5, 16, 17)],
            [(2, 0, 5), (5, 0, 8)],
            [(4, 0, 7), (5, 8, 16)],
        ],
        [
            [(3, 0, 16)],
            [(3, 16, 27), (3, 27, 29), (7, 0, 3)],
            [(1, 0, 9)],
        ],
        [
            [(6, 0, 12)],
            [(6, 12, 24)],
            [(0, 0, 14)],
        ],
    ]
