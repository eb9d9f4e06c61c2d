"""Processes of a job that leave their loops early: no signal ends them, and others miss them."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from streampack.distributed import kept as collectives
from tests.support.forked import End, Host

RANK = """
import torch.distributed as dist
from streampack import PackedLoader, Topology
from streampack.errors import RankError
from tests.support.dealt_runs import endless
from tests.support.runs import uneven

dist.init_process_group("gloo")
rank, dataset = dist.get_rank(), uneven(Topology.detect())
without_end = endless(Topology.detect())
"""

LEFT = {
    "by break": """
    for number, batch in enumerate(PackedLoader(dataset)):
        if number == 5:
            break
    """,
    "by break between groups": """
    for number, group in enumerate(PackedLoader(dataset).accumulate(2)):
        if number == 2:
            break
    """,
    "as it is": """
    batches = iter(PackedLoader(dataset))
    kept = [next(batches) for _ in range(5)]
    """,
    "without an end, by break": """
    for number, batch in enumerate(PackedLoader(without_end)):
        if number == 9:
            break
    """,
    "without an end, with other weights": """
    loader = PackedLoader(without_end)
    for number, batch in enumerate(loader):
        if number == 3:
            loader.set_weights({"a": 1, "b": 1, "c": 4})
        if number == 9:
            break
    """,
    "without an end, as it is, with a worker": """
    batches = iter(PackedLoader(without_end, num_workers=1))
    kept = [next(batches) for _ in range(9)]
    """,
}


def run(host: Host, folder: Path, body: str, jobs: int, end: End = "usual") -> None:
    (folder / "rank.py").write_text(RANK + dedent(body))
    for _ in range(jobs):
        statuses, output = host.run_job(folder / "rank.py", processes=2, end=end)
        assert statuses == [0, 0], output[-3000:]
        assert "terminate called" not in output


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "jobs"),
    [("by break between groups", 1), *(pytest.param(how, 20, marks=SLOW) for how in LEFT)],
)
def test_ranks_that_left_their_loops_exit_without_a_signal(
    host: Host, tmp_path: Path, how: str, jobs: int
) -> None:
    run(host, tmp_path, LEFT[how], jobs, "whole")


def test_a_rank_that_leaves_its_loop_is_missed_after_the_time_given(
    host: Host, tmp_path: Path
) -> None:
    run(
        host,
        tmp_path,
        """
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    try:
        for number, batch in enumerate(PackedLoader(dataset, rank_timeout_s=1.0)):
            if number == 5 and rank == 0:
                break
    except RankError as error:
        assert rank == 1
        assert "rank_timeout_s" in str(error), error
        store.set("printed", "yes")
    else:
        assert rank == 0
        store.wait(["printed"])
    """,
        1,
    )


def test_a_stopped_process_that_hosts_the_store_is_missed_after_the_time_given(
    host: Host, tmp_path: Path
) -> None:
    run(
        host,
        tmp_path,
        """
    import os, signal, time
    from pathlib import Path

    dist.barrier()
    note = Path("stopped")
    if rank == 0:  # which hosts the store
        note.write_text(f"{os.getpid()} ")
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        while not note.exists() or not note.read_text().endswith(" "):
            time.sleep(0.01)
        process = int(note.read_text())
        while Path(f"/proc/{process}/stat").read_text().split()[2] != "T":
            time.sleep(0.01)
        try:
            next(iter(PackedLoader(dataset, rank_timeout_s=0.5)))
        except RankError as error:
            assert error.setting == "rank_timeout_s", error
        else:
            raise AssertionError
        finally:
            os.kill(process, signal.SIGCONT)
    """,
        1,
    )


def test_a_process_waits_at_its_end_for_a_call_of_the_store_that_it_gave_up(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "ends.py").write_text(
        dedent("""
        import threading, time
        from pathlib import Path
        from streampack.job import listed_once

        listed_once.GRACE_S, listed_once.EXIT_WAIT_S = 0.0, 300.0
        given_up = threading.Event()

        def operation():
            given_up.wait()
            time.sleep(0.2)
            Path("ended").touch()

        try:
            listed_once.within(0.0, operation)
        except RuntimeError:
            given_up.set()
        """)
    )
    statuses, output = host.run(tmp_path / "ends.py", end="usual")
    assert statuses == [0], output
    assert (tmp_path / "ended").exists()


def test_the_last_questions_are_kept_though_they_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Work:
        def __init__(self, done: bool) -> None:
            self.is_completed = lambda: done

    kept: deque[Any] = deque()
    monkeypatch.setattr(collectives, "_kept", lambda: kept)
    answered = [Work(True) for _ in range(collectives.KEPT + 3)]
    for work in answered:
        collectives.keep(work, None)
    assert [work for work, _ in kept] == answered[3:]
    open_ones = [Work(False) for _ in range(2 * collectives.KEPT)]
    for work in open_ones:
        collectives.keep(work, None)
    assert [work for work, _ in kept] == open_ones
