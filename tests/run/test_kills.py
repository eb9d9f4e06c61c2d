"""Killed at any moment, a job loses and repeats nothing against its last saved state."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from streampack import PackedLoader
from streampack.deals.report_channel import decode_reports
from tests.support.drawn import sampled
from tests.support.forked import Host
from tests.support.killed_jobs import (
    LANES,
    assert_legs,
    batches_by_number,
    make_dataset,
    run_and_kill,
    saved_steps,
    trees,
)

LAYOUTS = ("documents", "tree")


@pytest.mark.parametrize(
    ("seed", "layout"),
    [
        (1, "tree"),
        *(
            pytest.param(seed, layout, marks=pytest.mark.slow)
            for seed, layout in (
                *product((0,), LAYOUTS),
                (1, "documents"),
                *product((2, 3), LAYOUTS),
            )
        ),
    ],
)
def test_killed_at_random_moments_a_job_loses_and_repeats_nothing(
    seed: int, layout: str, host: Host, tmp_path: Path
) -> None:
    host.call(tmp_path, kill_at_random_moments, seed, layout, tmp_path)


def kill_at_random_moments(seed: int, layout: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    source = trees() if layout == "tree" else None
    expected = batches_by_number(source)
    starts = [0]
    for leg, victim in enumerate(rng.permutation(["rank", "worker", "job"])):
        ranks = int(rng.choice([1, 2, 4]))
        run_and_kill(
            tmp_path, ranks, leg, float(rng.uniform(0.0, 0.15)), str(victim), source=source
        )
        starts.append(max(saved_steps(tmp_path), default=0))
    run_and_kill(tmp_path, 2, 3, source=source)
    assert starts[1] > 0, "it was killed before it saved anything"
    assert_legs(tmp_path, starts, expected)


@pytest.mark.sampled
def test_a_rank_killed_around_a_deal_loses_and_repeats_nothing(host: Host, tmp_path: Path) -> None:
    host.call(tmp_path, kill_around_a_deal, tmp_path, [*sampled(range(4), part=1 / 2)])


def kill_around_a_deal(tmp_path: Path, places: list[int]) -> None:
    loader = PackedLoader(make_dataset(0, 1))
    expected = {
        batch.step * LANES + batch.lane: batch.input_ids[batch.document_ids >= 0].tolist()
        for batch in loader
    }
    reports = decode_reports(loader.state_dict()["lanes"]["0"]["reports"])
    deals = [number for number, *_ in reports][1::3]  # that gave something
    assert len(deals) >= 4
    every = loader.dataset.plan.config.dealing.every
    starts = [0]
    # Before a report, between it and its exchange, after that, and when the deal is read.
    for leg, place in enumerate(places):
        ranks, after = ((2, -1), (4, 2), (3, 5), (2, 4 * LANES))[place]
        run_and_kill(tmp_path, ranks, leg, die_at=(deals[place] * every + 1) * LANES + after)
        starts.append(max(saved_steps(tmp_path), default=0))
    run_and_kill(tmp_path, 2, len(starts) - 1)
    assert starts == sorted(set(starts)), "a leg came no further"
    assert_legs(tmp_path, starts, expected)
