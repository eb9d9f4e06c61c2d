"""Ranks as processes with gloo, which are killed and join; the batches of a run left alone."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from examples import elastic_gloo
from examples.elastic_gloo import Report, Supervisor, make_loader
from streampack import PackedDataset, ordering, sources
from streampack.elastic import ElasticLoader
from streampack.workers.shared_exchange import remove_left_files
from tests.run.test_golden_batches import Corpus, hashed
from tests.support.forked import Host

MORE = 8  # for each rank: of the groups of the last exchanges, and inherited by a fork


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_gloo, "LIMIT", timedelta(seconds=4))  # a death while they connect


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


MEMBERS = """
import os, signal, sys
from datetime import timedelta
import torch.distributed as dist
from streampack.elastic import GroupMembers
from streampack.errors import RankError

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(*address, ranks, rank == 0, timeout=timedelta(seconds=60))
group = dist.ProcessGroupGloo(store, rank, ranks, timedelta(hours=1))
members = GroupMembers(group, timeout_s=3600 if sys.argv[1] == "dies" else 0.1)
assert members.gather(b"here") == [b"here"] * ranks
if rank == 1 and sys.argv[1] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
if rank != 1:
    group = None
    try:
        members.gather(b"")
    except RankError as error:
        assert error.setting == "members"
    del members
    store.set(f"noticed {rank}", b"")
store.wait([f"noticed {other}" for other in range(ranks) if other != 1])
print("noticed")
store.add("ended", 1)
while rank == 0 and store.add("ended", 0) < ranks - (sys.argv[1] == "dies"):
    pass
"""


@pytest.mark.parametrize("end", ["dies", "stops answering"])
def test_no_member_waits_an_hour_for_one_that_is_gone(end: str, host: Host, tmp_path: Path) -> None:
    program = tmp_path / "members.py"
    program.write_text(MEMBERS)
    statuses, output = host.run_job(program, end.split()[0], processes=5)
    dies = end == "dies"
    assert statuses == [0, -9 if dies else 0, 0, 0, 0], output
    assert output.count("noticed") == 5 - dies


@pytest.mark.slow
@pytest.mark.parametrize(("part", "num_workers"), [*((part, 0) for part in range(10)), (10, 2)])
def test_500_processes_that_join_and_die_lose_and_repeat_no_batch(
    part: int, num_workers: int
) -> None:
    job = jobs(4000, num_workers)
    expected = jobs(4000)(ranks=1).run()
    changes, pauses, seed = 0, [], 100 * part
    while changes < 50:
        report = job(ranks=3, most=8, deaths=45, joins=45, every=3, seed=seed).run()
        checked(report, expected, 8)
        changes, seed = changes + report.memberships, seed + 1
        pauses += report.pauses
    shares = np.quantile(pauses, [0.1, 0.5, 0.9, 0.99, 1])
    print(
        f"{changes} memberships; of {len(pauses)} pauses 10, 50, 90, 99 and 100 % are at most "
        f"{', '.join(f'{share:.2f}' for share in shares)} s"
    )


# ---------------------------------------------------------------------- workers

#: Runs of several epochs over small files.
RUNS: dict[str, Callable[[Corpus], dict[str, Any]]] = {
    "trees": lambda corpus: {
        "source": sources.JSONL(corpus.path("groups.jsonl"), tokens="input_ids"),
        "layout": "tree",
    },
    "mixture": lambda corpus: {
        "source": sources.Mixture(
            {"a": corpus.path("ids.parquet"), "b": sources.open(corpus.path("ids.tar"))},
            weights={"a": 1, "b": 2},
        )
    },
    "order": lambda corpus: {
        "source": corpus.path("ids.parquet"),
        "order": ordering.SimilarityOrder(),
    },
}


class Model(elastic_gloo.Model):
    """The example's model over the ids of these files."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Embedding(300, 8), nn.Linear(8, 300)).double()


def in_session(run: Callable[[], Report]) -> Report:
    """Run a job in a session of its own, and wait until its last process has ended."""
    context: Any = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def lead() -> None:
        os.setsid()
        theirs.send(run())

    leader = context.Process(target=lead)
    leader.start()
    theirs.close()
    report: Report = ours.recv()
    leader.join()
    until = time.monotonic() + 60
    while living := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                     if session(pid) == leader.pid]:  # fmt: skip
        assert time.monotonic() < until, living
        time.sleep(0.05)
    return report


def session(pid: int) -> int | None:
    """The session of a process; None if it has ended."""
    try:
        state, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return None if state == "Z" else os.getsid(pid)
    except OSError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_workers_of_killed_ranks_end_and_the_batches_stay_as_they_are(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic_gloo, "Model", Model)
    monkeypatch.setattr(elastic_gloo, "digest", lambda batch: hashed([batch]))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    options = RUNS[kind](Corpus(tmp_path))

    def make(num_workers: int = 0) -> ElasticLoader[Any]:
        settings = {"seq_len": 64, "batch_size": 2, "lanes": 16, "epochs": 8, **options}
        dataset = PackedDataset(**settings)
        return ElasticLoader(dataset, step_batches=8, num_workers=num_workers)

    importlib.import_module("torch._dynamo")
    expected = Supervisor(make, ranks=1, start_method="fork").run()
    with_workers = functools.partial(make, 2)
    changes, seed, pauses = 0, 0, []
    while changes < 8:
        job = Supervisor(
            with_workers, ranks=3, most=4, deaths=4, joins=4, every=3, seed=seed,
            start_method="fork",
        )  # fmt: skip
        report = in_session(job.run)
        checked(report, expected, 4)
        changes, seed, pauses = changes + report.memberships, seed + 1, pauses + report.pauses
    remove_left_files()  # as the next job does; files that a process holds stay
    assert not list((tmp_path / "shared").glob("streampack*"))
    print(f"{changes} memberships; median pause {np.median(pauses):.2f} s")
