"""A rank that is given something alone, among real processes: all stop, and none trains on it."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.support.forked import Host

JOB = """
import json, sys
import torch
import torch.distributed as dist
from streampack import PackedLoader, Topology
from streampack.errors import RankError
from tests.support.dealt_runs import dealt_mixture, endless
from tests.support.runs import identity

dist.init_process_group("gloo")
rank, run, in_step = dist.get_rank(), sys.argv[1], sys.argv[2] == "in step"
if run == "endless":
    dataset, weights = endless(Topology.detect()), {"a": 1, "b": 1, "c": 4}
else:
    dataset = dealt_mixture("by weights", topology=Topology.detect())
    weights = {"web": 1, "code": 2, "books": 3}
loader, taken, outcome = PackedLoader(dataset, rank_timeout_s=20), [], ""
try:
    for number, batch in enumerate(loader):
        taken.append([identity(batch), float(batch.num_items_in_batch)])
        if in_step:
            dist.all_reduce(torch.ones(1))
        if number == 3 and rank == 1:
            CALL
        if number == 8:
            break
except RankError as error:
    outcome = error.setting or "at once"
except RuntimeError:  # of the loop's own all_reduce
    outcome = "gradients"
with open(f"{rank}.json", "w") as file:
    json.dump([outcome, taken], file)
if run == "endless" and not in_step:  # a rank that lives on does not keep the others waiting
    dist.barrier()
"""


@pytest.fixture(scope="module")
def whole(
    request: pytest.FixtureRequest, host: Host, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[list[Any]]]:
    """The name of a run, and its batches on both ranks without such a call."""
    folder = tmp_path_factory.mktemp("whole")
    return request.param, ranks_of(host, folder, "pass", request.param, "apart")


CALLS = ("set_weights(weights)", "set_weights(weights, from_step=7)", "skip(2)")
QUICK = {("endless", CALLS[0]), ("finite", CALLS[2])}


@pytest.mark.parametrize(
    ("whole", "call"),
    [
        pytest.param(run, call, marks=() if (run, call) in QUICK else pytest.mark.slow)
        for run in ("endless", "finite")
        for call in CALLS
    ],
    indirect=["whole"],
)
def test_a_rank_that_calls_alone_is_an_error_on_all_ranks_at_most_one_step_on(
    host: Host, tmp_path: Path, call: str, whole: tuple[str, list[list[Any]]]
) -> None:
    run, batches = whole
    found = ranks_of(host, tmp_path, f"loader.{call}", run, "apart")
    steps = (5, 5) if call == CALLS[0] else (4, 5)
    for (outcome, taken), (_, expected), least in zip(found, batches, steps, strict=True):
        assert outcome
        assert len(taken) == least
        assert taken == expected[:least]


def ranks_of(host: Host, folder: Path, call: str, run: str, how: str) -> list[list[Any]]:
    (folder / "rank.py").write_text(dedent(JOB).replace("CALL", call))
    host.run_job(folder / "rank.py", run, how, processes=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (1, 0)]
