"""Ranks that are processes of a torchrun job over gloo: they end together, and fail together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from streampack import PackedDataset, PackedLoader, Topology
from streampack.errors import ConfigError, first_line
from tests.support.forked import Host
from tests.support.runs import filled, identity, in_order, uneven
from tests.support.simulated_ranks import on_ranks

ROOT = Path(__file__).parents[2]

JOB = """
import json, os, signal, sys, time
import torch.distributed as dist
from streampack import PackedLoader, Topology
from streampack.distributed.exchange import ProcessRanks
from streampack.errors import StreampackError
from tests.support.runs import identity
from tests.support.runs import uneven

mode, world_size, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
process = dist.get_rank()
# Processes that stand one behind the other share a data-parallel rank, as tensor-parallel ones do.
topology = Topology(process // (dist.get_world_size() // world_size), world_size)
if mode == "default":
    assert Topology.detect() == topology
result = {}
try:
    if mode == "uneven":
        topology = Topology(min(process, 1), 2)
    timeout_s = {"hang": 5.0, "slow": 10.0}.get(mode)
    if mode == "absent" and process == 1:
        while not os.path.exists(f"{folder}/0.json"):
            time.sleep(0.05)
        os._exit(0)
    if mode == "absent":
        timeout_s = 1.0
    ranks = None if timeout_s is None else ProcessRanks(topology, timeout_s=timeout_s)
    loader = PackedLoader(uneven(topology), num_workers=process % 4, ranks=ranks)
    if mode == "start" and process == 0:
        loader.load_state_dict(json.loads(open(folder + "/state").read()))
    if mode == "groups":
        result["counts"] = [group.num_loss_tokens for group in loader.accumulate(3)]
    else:
        found = []
        for batch in loader:
            found.append(identity(batch))
            if process == 1 and len(found) == 20 and mode == "slow":
                time.sleep(4)
            if process == 1 and len(found) == 20 and mode in ("die", "hang"):
                if mode == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                while not all(os.path.exists(f"{folder}/{rank}.json") for rank in (0, 2)):
                    time.sleep(0.1)
        result["batches"] = found
except StreampackError as error:
    result["error"] = [type(error).__name__, str(error)]
with open(f"{folder}/{process}.json", "w") as file:
    json.dump(result, file)
sys.stdout.flush()
os._exit(0)  # whatever the others do
"""


def run_job(
    host: Host, folder: Path, mode: str, processes: int, world_size: int | None = None
) -> list[Any]:
    """Return the output file of each process, or None where there is no file."""
    (folder / "job.py").write_text(JOB)
    host.run_job(folder / "job.py", mode, world_size or processes, folder, processes=processes)
    return results_of(folder, processes)


def results_of(folder: Path, processes: int) -> list[Any]:
    files = [folder / f"{rank}.json" for rank in range(processes)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


def reference() -> list[Any]:
    return json.loads(json.dumps([identity(b) for b in PackedLoader(uneven(Topology()))]))


SLOW = pytest.mark.slow


def test_a_dataset_that_was_built_before_its_rank_was_known_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early = PackedDataset([[1, 2, 3]] * 50, seq_len=8, lanes=1)
    chosen = PackedDataset([[1, 2, 3]] * 50, seq_len=8, lanes=1, topology=Topology())
    monkeypatch.setattr(Topology, "detect", lambda: Topology(1, 2))
    for loop in (PackedLoader(early), early):
        with pytest.raises(ConfigError, match=r"rank 0 of 1, and now it is rank 1 of 2"):
            next(iter(loop))
    assert next(iter(PackedLoader(chosen))).num_tokens == 48


def test_ranks_of_a_launcher_that_are_not_connected_are_warned_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = PackedLoader(uneven(Topology.detect()))
    next(iter(loader))
    (message,) = [r for r in caplog.messages if "not initialised" in r and "rank 0 of 2" in r]
    assert "init_process_group()" in message
    caplog.clear()
    next(iter(DataLoader(uneven(Topology.detect()), batch_size=None)))
    assert caplog.text.count("init_process_group()") == 1
    caplog.clear()
    next(iter(PackedLoader(uneven(Topology(1, 3)))))  # simulated on purpose
    assert "init_process_group" not in caplog.text


@SLOW
def test_a_job_of_torchrun_gives_the_sequence_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "job.py", "default", "2", str(tmp_path)],
        cwd=tmp_path, timeout=600, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    results = results_of(tmp_path, 2)
    assert filled(in_order([result["batches"] for result in results])) == reference()


@pytest.mark.parametrize("processes", [5, pytest.param(6, marks=SLOW)])
def test_any_number_of_processes_ends_after_the_same_step(
    host: Host, processes: int, tmp_path: Path
) -> None:
    results = run_job(host, tmp_path, "default", processes)
    assert filled(in_order([result["batches"] for result in results])) == reference()


@SLOW
def test_model_parallel_processes_get_the_same_batches_and_count_once(
    host: Host, tmp_path: Path
) -> None:
    results = run_job(host, tmp_path, "shared", 4, world_size=2)
    batches = [result["batches"] for result in results]
    assert batches[0] == batches[1]
    assert batches[2] == batches[3]
    assert filled(in_order([batches[0], batches[2]])) == reference()
    results = run_job(host, tmp_path, "groups", 4, world_size=2)

    def counts_of(rank: int, member: Any) -> list[int]:
        loader = PackedLoader(uneven(Topology(rank, 2)), ranks=member)
        return [batch.num_loss_tokens for batch in loader]

    steps = [sum(counts) for counts in zip(*on_ranks(2, counts_of), strict=True)]
    expected = [sum(steps[i : i + 3]) for i in range(0, len(steps), 3)]
    assert [result["counts"] for result in results] == [expected] * 4


@pytest.mark.parametrize("mode", ["die", pytest.param("hang", marks=SLOW)])
def test_a_rank_that_is_gone_fails_the_others_in_words_and_in_time(
    host: Host, mode: str, tmp_path: Path
) -> None:
    results = run_job(host, tmp_path, mode, 3)
    for rank in (0, 2):
        kind, text = results[rank]["error"]
        assert kind == "RankError"
        assert "Another process of the job died" in text


def test_a_rank_that_never_connects_fails_the_others_in_time(host: Host, tmp_path: Path) -> None:
    results = run_job(host, tmp_path, "absent", 2)
    assert results[0]["error"][0] == "RankError"
    assert "1 of 2 processes connected" in results[0]["error"][1]


@SLOW
def test_a_rank_may_work_for_longer_than_a_try_to_connect_may_last(
    host: Host, tmp_path: Path
) -> None:
    results = run_job(host, tmp_path, "slow", 2)
    assert filled(in_order([result["batches"] for result in results])) == reference()


SCATTER = """
import numpy as np
import torch.distributed as dist
from streampack import Topology
from streampack.distributed.exchange import ProcessRanks
from streampack.distributed.kept import _kept

dist.init_process_group("gloo")
process, works = dist.get_rank(), []

def recorded(collective):
    def start(*arguments, **options):
        works.append(collective(*arguments, **options))
        return works[-1]
    return start

dist.scatter, dist.broadcast = map(recorded, (dist.scatter, dist.broadcast))
ranks = ProcessRanks(Topology(process, 2))
for size in (3, 100_000, 0):
    parts = [np.arange(size), {"rank": 1}] if process == 0 else None
    part = ranks.scatter(parts)
    assert part == {"rank": 1} if process else part.tolist() == [*range(size)]
assert ranks.scatter([None, None] if process == 0 else None) is None
kept = [held for held, _ in _kept()]
assert len(works) == 8
assert all(any(work is held for held in kept) for work in works)
sizes = [t.nbytes for _, (first, others) in [*_kept()][2::2] for t in (first, *others)]
assert sizes and not any(sizes)
print("ended")
"""


def test_objects_arrive_and_gloos_thread_releases_no_tensor_last(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "scatter.py").write_text(SCATTER)
    statuses, output = host.run_job(tmp_path / "scatter.py", processes=2)
    assert (statuses, output.count("ended")) == ([0, 0], 2), output


def test_ranks_that_start_from_different_positions_all_report_it(
    host: Host, tmp_path: Path
) -> None:
    loader = PackedLoader(uneven(Topology(0, 2)))
    next(iter(loader))
    (tmp_path / "state").write_text(json.dumps(loader.state_dict()))
    for result in run_job(host, tmp_path, "start", 2):
        assert result["error"][0] == "RankError"
        assert "must start the same run" in result["error"][1]


def test_data_parallel_ranks_shared_unequally_are_refused(host: Host, tmp_path: Path) -> None:
    for result in run_job(host, tmp_path, "uneven", 3, world_size=3):
        assert result["error"][0] == "ConfigError"
        assert "Topology.from_mesh" in result["error"][1]


def test_the_words_of_another_library_are_not_cut_inside_one() -> None:
    words = [f"word{i}" for i in range(100)]
    *kept, last = first_line(RuntimeError(" ".join(words) + "\nand more")).split()
    assert kept == words[: len(kept)]
    assert (last, first_line(RuntimeError())) == ("...", "")
