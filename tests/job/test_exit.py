"""Processes of a job that leave their loops early: no signal ends them, and others miss them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.forked import Host

RANK = """
import torch.distributed as dist
from streampack import PackedLoader, Topology
from streampack.errors import RankError
from tests.support.runs import uneven

dist.init_process_group("gloo")
rank, dataset = dist.get_rank(), uneven(Topology.detect())
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


def run(host: Host, folder: Path, body: str, jobs: int) -> None:
    (folder / "rank.py").write_text(RANK + dedent(body))
    for _ in range(jobs):
        statuses, said = host.run_job(folder / "rank.py", processes=2)
        assert statuses == [0, 0], said[-3000:]
        assert "terminate called" not in said


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "jobs"),
    [("by break between groups", 1), *(pytest.param(how, 20, marks=SLOW) for how in LEFT)],
)
def test_ranks_whose_loops_were_left_exit_without_a_signal(
    host: Host, tmp_path: Path, how: str, jobs: int
) -> None:
    run(host, tmp_path, LEFT[how], jobs)


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
        for number, batch in enumerate(PackedLoader(dataset, rank_timeout_s=2.0)):
            if number == 5 and rank == 0:
                break
    except RankError as error:
        assert rank == 1
        assert "rank_timeout_s" in str(error), error
        store.set("said", "yes")
    else:
        assert rank == 0
        store.wait(["said"])
    """,
        1,
    )
