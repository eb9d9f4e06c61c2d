"""Workers of some ranks die: these ranks restart, the others notice nothing, no batch differs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from streampack import PackedLoader
from streampack.errors import WorkerError
from tests.support.forked import Host
from tests.support.killed_jobs import LANES, batches_by_number, make_dataset, tokens_of
from tests.support.runs import child_processes

EVERY = (9, 14)  # batches after which a rank kills one of its workers
FEW, MANY = 2, 1000  # workers that a rank kills at most


PROGRAM = """
import sys
from tests.job.test_worker_deaths import iterate_through_deaths
iterate_through_deaths(*sys.argv[1:])
"""


def iterate_through_deaths(folder: str, size_text: str, most: str, options: str) -> None:
    """Iterate as one rank of a job of two, and write the batches and the number of deaths."""
    dist.init_process_group("gloo")
    rank, ranks, size = dist.get_rank(), dist.get_world_size(), int(size_text)
    loader = PackedLoader(
        make_dataset(rank, ranks), num_workers=2, rank_timeout_s=60, **json.loads(options)
    )
    found: list[tuple[int, list[int], float]] = []
    deaths, killed = 0, -1
    while True:
        try:
            for group in loader if size == 1 else loader.accumulate(size):
                for batch in [group] if size == 1 else group:
                    number = batch.step * LANES + batch.lane
                    found.append((number, tokens_of(batch), batch.num_items_in_batch))
                assert loader.state_dict()["next_batch"] % ranks == 0
                if deaths < int(most) and len(found) // EVERY[rank % 2] > killed:
                    killed = len(found) // EVERY[rank % 2]
                    for worker in child_processes()[:1]:
                        os.kill(worker, signal.SIGKILL)
            break
        except WorkerError:
            deaths += 1
    Path(folder, f"{rank}.json").write_text(json.dumps([found, deaths]))
    dist.destroy_process_group()


def job(
    host: Host, folder: Path, size: int, most: int, **options: Any
) -> list[tuple[list[Any], int]]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    arguments = (folder, size, most, json.dumps(options))
    statuses, output = host.run_job(program, *arguments, processes=2)
    assert statuses == [0, 0], output
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    ("size", "options", "most"),
    [
        (3, {}, FEW),
        *(
            pytest.param(size, options, MANY, marks=pytest.mark.slow)
            for size, options in [(1, {}), (3, {}), (1, {"end": "stop"})]
        ),
    ],
)
def test_ranks_with_dying_workers_give_the_batches_of_one_that_lives(
    host: Host, size: int, options: dict[str, Any], most: int, tmp_path: Path
) -> None:
    ranks = job(host, tmp_path, size, most, **options)
    assert all(deaths > 1 for _, deaths in ranks)
    given = {number: tokens for found, _ in ranks for number, tokens, _ in found if tokens}
    assert sum(1 for found, _ in ranks for _, tokens, _ in found if tokens) == len(given)
    expected = {number: tokens for number, tokens in batches_by_number().items() if tokens}
    if options:
        assert len(given) > len(expected) - 4 * LANES
        assert given == {number: expected[number] for number in given}
    else:
        assert given == expected
    counts = [[count for _, _, count in found] for found, _ in ranks]
    assert counts[0] == counts[1]  # of all ranks, in every step
