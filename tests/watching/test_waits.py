"""`Waits` measures a loop's waits, and changes nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from streampack import (
    Hook,
    PackedDataset,
    PackedLoader,
    Topology,
    Waits,
    WindowConfig,
    metrics,
    sources,
)
from streampack.errors import RankError
from streampack.metrics import LaneTimes
from streampack.sources import ReadOptions
from streampack.watching.clock import ready_s
from streampack.watching.figures import RankWaits
from tests.support.simulated_ranks import on_ranks

SLEEP_S = 0.02
DOCUMENTS = [[i % 50 + 1] * (i % 30 + 1) for i in range(240)]


@pytest.fixture(autouse=True)
def same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "thread_clock", time.thread_time)


def slow(documents: Any, seeds: Any) -> Any:
    time.sleep(SLEEP_S * len(documents) / 10)
    return documents


def asks_for_the_clock(documents: Any, seeds: Any) -> Any:
    assert metrics.thread_clock is ready_s
    return documents


def loader_of(*, num_workers: int = 0, context: Any = None, **settings: Any) -> PackedLoader[Any]:
    settings = {"topology": Topology(), "lanes": 2, **settings}
    dataset = PackedDataset(DOCUMENTS, seq_len=32, batch_size=2, **settings)
    return PackedLoader(dataset, num_workers=num_workers, multiprocessing_context=context)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loop_gets_the_same_batches_and_states(num_workers: int) -> None:
    def seen(loader: PackedLoader[Any], items: Any) -> list[Any]:
        return [(batch.input_ids.tolist(), loader.state_dict()["next_batch"]) for batch in items]

    plain, watched = loader_of(), loader_of(num_workers=num_workers)
    assert seen(watched, Waits(watched)) == seen(plain, plain)


def test_every_step_but_the_first_is_counted_in_one_report() -> None:
    waits = Waits(loader_of())
    counts, batches = [], 0
    for batches, _ in enumerate(waits, 1):
        if batches % 7 == 0:
            counts.append(waits.report().steps)
    counts.append(waits.report().steps)
    assert counts[:2] == [6, 7]
    assert sum(counts) == batches - 1


def test_waits_are_within_the_interval_and_their_quantiles_in_order() -> None:
    waits = Waits(loader_of(num_workers=1, map=Hook("slow", slow)))
    began = time.perf_counter()
    for _ in waits:
        pass
    elapsed_s = time.perf_counter() - began
    report = waits.report()
    assert 0 < report.wait_s <= report.seconds <= elapsed_s
    assert report.exposed_s == pytest.approx(report.wait_s)  # no device
    assert 0 <= report.p50_s <= report.p95_s <= report.p99_s <= report.wait_s
    assert all(0 <= share <= 1 for share in report.occupancy.values())
    assert report.ranks_s == 0
    assert report.workers == 1
    assert report.limit == "hooks"
    assert report.occupancy["tokenizing"] < 0.1


class Slow:
    """A stage of a user."""

    def __call__(self, documents: Any, place: Any) -> Any:
        return slow(documents, None)

    def describe(self) -> dict[str, Any]:
        return {}


class SlowItems:
    """A map-style dataset."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> list[int]:
        time.sleep(SLEEP_S)
        return [1] * 30


def slowly(busy: bool) -> Iterator[list[int]]:
    for _ in range(40):
        until = time.perf_counter() + SLEEP_S
        while busy and time.perf_counter() < until:
            pass
        time.sleep(max(until - time.perf_counter(), 0))
        yield [1] * 30


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("source", "options", "limit"),
    [
        (DOCUMENTS, {"filter": Hook("slow", lambda d, s: slow(d, s).lengths > 0)}, "hooks"),
        (DOCUMENTS, {"stages": [Slow()]}, "hooks"),
        (lambda: slowly(False), {"lanes": 1}, "iterable"),
        (lambda: slowly(True), {"lanes": 1}, "iterable"),
        (SlowItems(), {"lanes": 1}, "iterable"),
    ],
    ids=["filter", "stage", "waiting iterable", "busy iterable", "map-style dataset"],
)
def test_code_of_the_user_is_a_stage_of_its_own(source: Any, options: Any, limit: str) -> None:
    dataset = PackedDataset(
        sources.open(source, reading=ReadOptions(block_documents=4)),
        seq_len=32,
        batch_size=1,
        window=WindowConfig(rows=4),
        **options,
    )
    waits = Waits(PackedLoader(dataset))
    for _ in waits:
        pass
    assert waits.report().limit == limit


def test_a_loader_of_any_kind_is_distinguished_from_a_slow_step() -> None:
    def items(pause_s: float) -> Iterator[int]:
        for i in range(8):
            time.sleep(pause_s)
            yield i

    waits = Waits(items(SLEEP_S))
    assert list(waits) == list(range(8))
    report = waits.report()
    assert (report.limit, report.occupancy, report.workers) == ("loader", {}, -1)
    assert report.wait_s >= 7 * SLEEP_S
    waits = Waits(items(0))
    for _ in waits:
        time.sleep(SLEEP_S)
    assert waits.report().limit == "step"


def test_groups_of_batches_are_steps() -> None:
    loader = loader_of()
    waits = Waits(loader, loader.accumulate(2))
    groups = [len(group) for group in waits]
    assert waits.report().steps == len(groups) - 1
    assert set(groups[:-1]) == {2}


def test_pickling_and_receiving_are_times_of_loaders_with_workers() -> None:
    for num_workers in (0, 1):
        loader = loader_of(num_workers=num_workers, epochs=3)
        for batch in loader:
            batch.make_fields()
        times = loader.metrics().times
        assert (times.send_s > 0) == (times.receive_s > 0) == bool(num_workers)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_use_the_clock_of_the_loop(context: str) -> None:
    waits = Waits(loader_of(num_workers=1, context=context, map=Hook("ask", asks_for_the_clock)))
    assert len(list(waits)) > 5


@pytest.mark.parametrize(("ranks_s", "limit"), [(1.9, "loader"), (2.1, "other ranks")])
def test_a_loop_that_waits_mostly_for_other_ranks_is_limited_by_them(
    ranks_s: float, limit: str
) -> None:
    seconds: Any = {"seconds": 10, "wait_s": 4, "exposed_s": 4, "transform_s": 0}
    quantiles: Any = {"p50_s": 0, "p95_s": 0, "p99_s": 0}
    waits = RankWaits(
        rank=0, steps=9, ranks_s=ranks_s, workers=-1, times=LaneTimes(), **seconds, **quantiles
    )
    assert waits.limit == limit


def test_the_clock_counts_no_sleep_and_all_work() -> None:
    began, at_s = ready_s(), time.perf_counter()
    time.sleep(0.1)
    assert ready_s() - began < 0.05
    began, at_s = ready_s(), time.perf_counter()
    while time.perf_counter() - at_s < 0.1:
        pass
    assert ready_s() - began == pytest.approx(0.1, abs=0.02)


def test_the_slowest_of_connected_ranks_is_named_with_its_stage() -> None:
    def one(rank: int, member: Any) -> Any:
        hook = Hook("same", slow if rank == 2 else lambda documents, seeds: documents)
        dataset = PackedDataset(
            DOCUMENTS * 33,
            seq_len=32,
            batch_size=2,
            lanes=4,
            map=hook,
            window=WindowConfig(rows=8),
            topology=Topology(rank, 4),
        )
        waits = Waits(PackedLoader(dataset, ranks=member))
        reports = []
        for step, _ in enumerate(islice(waits, 60)):
            time.sleep(0.001)
            if step % 30 == 29:
                reports.append(waits.over_ranks())
        return reports

    reports = on_ranks(4, one)
    for of_rank in reports:
        assert of_rank == reports[0]  # all ranks get the same figures
    for job in reports[0]:
        assert [rank.rank for rank in job.ranks] == [0, 1, 2, 3]
        assert (job.slowest.rank, job.limit) == (2, "hooks")
        assert job.ranks[2].ranks_s < job.ranks[0].ranks_s  # others wait for it
    assert [job.ranks[0].steps for job in reports[0]] == [29, 30]


def test_ranks_without_a_connection_are_refused_instead_of_left_out() -> None:
    waits = Waits(loader_of(topology=Topology(1, 2)))
    next(iter(waits))
    with pytest.raises(RankError):
        waits.over_ranks()


def test_one_rank_is_its_own_job() -> None:
    waits = Waits(loader_of())
    for _ in islice(waits, 5):
        pass
    job = waits.over_ranks()
    assert [rank.steps for rank in job.ranks] == [4]


def test_reports_are_numbers_for_a_logger_and_text_for_a_screen() -> None:
    waits = Waits(loader_of(map=Hook("slow", slow)))
    for _ in waits:
        pass
    report = waits.report()
    values = report.as_dict()
    assert values["steps"] == report.steps
    assert values["occupancy/hooks"] == report.occupancy["hooks"]
    assert "hooks" in str(report)
    row = report.as_row()
    again = type(report).of_row(row)
    np.testing.assert_array_equal(again.as_row(), row)
    assert again.limit == report.limit
