"""Planning's working memory is kept from plan to plan, and no plan shows it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from streampack.packing import BestFitDecreasing, FirstFitDecreasing, Plan, check_plan
from streampack.packing import fit_decreasing as scratch_module
from streampack.packing.fit_decreasing import scratch_words

SIZES = [3000, 10, 500, 0, 4000, 1]


def _lengths(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).integers(1, 5000, count)


def _arrays(plan: Plan) -> list[bytes]:
    values = [getattr(plan, field.name) for field in fields(plan)]
    return [value.tobytes() for value in values if value is not None]


@pytest.mark.parametrize("packer", [
    BestFitDecreasing(seq_len=1024, extra_capacity=20),
    FirstFitDecreasing(seq_len=1024),
    BestFitDecreasing(seq_len=1024, align=8),
])  # fmt: skip
def test_plans_stay_as_they_are_while_others_are_made_in_every_thread(packer: Any) -> None:
    jobs = [(seed, count) for seed in range(4) for count in SIZES]
    with ThreadPoolExecutor(1) as fresh:
        alone = [
            _arrays(fresh.submit(packer.plan, _lengths(*job), final=True, seed=0).result())
            for job in jobs
        ]
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda job: packer.plan(_lengths(*job), final=True, seed=0), jobs))
    assert [_arrays(plan) for plan in plans] == alone
    for job, plan in zip(jobs, plans, strict=True):
        check_plan(plan, _lengths(*job))
    words = scratch_words(1)
    for plan in [packer.plan(_lengths(0, 3000), final=True, seed=0)]:
        assert not any(
            np.shares_memory(words, getattr(plan, field.name))
            for field in fields(plan)
            if getattr(plan, field.name) is not None
        )


def test_memory_is_kept_up_to_a_bound() -> None:
    small = scratch_words(1000)
    assert scratch_words(1000) is small
    most = scratch_module.MOST_KEPT_BYTES // 8
    assert len(scratch_words(2 * most)) >= 2 * most
    assert scratch_words(1000).nbytes <= scratch_module.MOST_KEPT_BYTES
