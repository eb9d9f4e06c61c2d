"""A stage that is delayed is named by `Waits`, with real delays in real processes."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from benchmarks.waits import RANKS, STAGES, Store, named, named_on_ranks


def names(workers: int) -> dict[str, str]:
    """Return the stage that `Waits` names for each delayed stage, on one rank."""
    store = Store()
    try:
        return {
            stage: named(stage, store.port, workers)
            for stage in STAGES
            if workers or stage != "sending"
        }
    finally:
        store.close()


def names_on_ranks() -> list[bool]:
    store = Store()
    trials = [(stage, (3 * number + 1) % RANKS) for number, stage in enumerate(STAGES)]
    try:
        found = named_on_ranks(trials, store.port)
        return [got[:2] == trial for trial, got in zip(trials, found, strict=True)]
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 0])
def test_the_delayed_stage_is_the_limit(workers: int) -> None:
    context = multiprocessing.get_context("spawn")  # the process of pytest has threads
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found = pool.submit(names, workers).result()
    assert found == {stage: stage for stage in found}
    assert len(found) == len(STAGES) - (not workers)


@pytest.mark.slow
def test_the_delayed_rank_of_eight_is_named_with_its_stage() -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(names_on_ranks).result() == [True] * len(STAGES)
