"""Ranks as processes with gloo, which are killed and join; the batches of a run left alone."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest

from examples import elastic_gloo
from examples.elastic_gloo import Report, Supervisor, make_loader

MORE = 8  # for each rank: of the groups of the last exchanges, and inherited by a fork


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_gloo, "LIMIT", timedelta(seconds=4))  # a death holds the others


def checked(report: Report, expected: Report, most: int) -> None:
    """Compare a disturbed job with one rank left alone."""
    assert report.batches == expected.batches
    assert {end[0] for end in report.ends} == {len(expected.losses)}
    differences = [abs(report.losses[step] - loss) for step, loss in expected.losses.items()]
    assert max(differences) < 1e-9
    for _, descriptors, threads in report.ends:
        assert descriptors <= expected.ends[0][1] + MORE * most
        assert threads <= expected.ends[0][2] + MORE * most
    assert not multiprocessing.active_children()


def jobs(num_documents: int, num_workers: int = 0) -> Callable[..., Supervisor]:
    """Return a maker of jobs with ranks that inherit the kernels of this process."""
    make = functools.partial(make_loader, num_documents, num_workers)
    importlib.import_module("torch._dynamo")  # which optimizers import
    warm = make_loader(num_documents)
    warm.set_ranks(0, 1)
    next(iter(warm))
    return functools.partial(Supervisor, make, start_method="fork")


def test_killed_and_joining_processes_lose_and_repeat_no_batch() -> None:
    job = jobs(150)
    expected = job(ranks=1).run()
    report = job(ranks=2, most=3, deaths=1, joins=1, every=1).run()
    checked(report, expected, 3)
    assert report.memberships > 1


@pytest.mark.slow
@pytest.mark.parametrize(("part", "num_workers"), [*((part, 0) for part in range(10)), (10, 2)])
def test_500_processes_that_join_and_die_lose_and_repeat_no_batch(
    part: int, num_workers: int
) -> None:
    job = jobs(4000, num_workers)
    expected = jobs(4000)(ranks=1).run()
    changes, pauses, seed = 0, [], 100 * part
    while changes < 50:
        report = job(ranks=3, most=8, deaths=30, joins=30, every=3, seed=seed).run()
        checked(report, expected, 8)
        changes, seed = changes + report.memberships, seed + 1
        pauses += report.pauses
    shares = np.quantile(pauses, [0.1, 0.5, 0.9, 0.99, 1])
    print(
        f"{changes} memberships; of {len(pauses)} pauses 10, 50, 90, 99 and 100 % are at most "
        f"{', '.join(f'{share:.2f}' for share in shares)} s"
    )
