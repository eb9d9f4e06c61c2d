"""Processes of a job that leave their loops early: no signal ends them, and others miss them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streampack import ConfigError, PackedLoader, Topology
from tests.support.runs import uneven

ROOT = Path(__file__).parents[2]

#: Forks the ranks of one job after another, which saves importing torch and loading kernels.
JOBS = """
import os, socket, sys, time
import torch.distributed as dist
from streampack import PackedLoader, RankError, Topology
from tests.support.runs import uneven

RANKS = 2

def rank_of_a_job():
    for _ in range(%(jobs)d):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]))
        ranks = {}
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
                return rank
            ranks[child] = rank
        ended = [os.waitpid(child, 0)[1] for child in ranks]
        assert not any(ended), ended
    return None

for batch in PackedLoader(uneven(Topology())):
    break
rank = rank_of_a_job()
if rank is not None:
    dist.init_process_group("gloo")
    dataset = uneven(Topology.detect())
%(body)s
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
}


def run(body: str, jobs: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", JOBS % {"jobs": jobs, "body": body}],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "terminate called" not in ended.stderr


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "jobs"),
    [("by break between groups", 3), *(pytest.param(how, 20, marks=SLOW) for how in LEFT)],
)
def test_ranks_whose_loops_were_left_exit_without_a_signal(how: str, jobs: int) -> None:
    run(LEFT[how], jobs)


def test_a_rank_that_leaves_its_loop_is_missed_after_the_time_given() -> None:
    run(
        """
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    try:
        for number, batch in enumerate(PackedLoader(dataset, rank_timeout_s=4.0)):
            if number == 5 and rank == 0:
                break
    except RankError as error:
        assert rank == 1
        assert "left its loop" in str(error) and "for 4 s" in str(error), error
        assert "rank_timeout_s" in str(error), error
        store.set("said", "yes")
    else:
        assert rank == 0
        store.wait(["said"])
    """,
        1,
    )


@pytest.mark.parametrize("given", [0, -1, float("nan"), float("inf"), "60", None])
def test_a_time_to_wait_for_ranks_is_a_number_of_seconds(given: object) -> None:
    with pytest.raises(ConfigError, match="rank_timeout_s"):
        PackedLoader(uneven(Topology()), rank_timeout_s=given)  # type: ignore[arg-type]
