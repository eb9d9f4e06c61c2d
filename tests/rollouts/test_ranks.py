"""Rollouts of several processes: ranks get their own rows, and kills lose nothing."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.forked import ROOT, Host

PROGRAM = """
import json, os, random, signal, sys, threading
import torch.distributed as dist
from streampack import rollouts
from tests.support.rollout_runs import answers, make_queue, serials_of

folder, layout, kill, seed = sys.argv[1:]
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
saved = json.load(open(folder + "/saved")) if os.path.exists(folder + "/saved") else None
spool = folder + "/spool" if layout == "tree" else None
queue = make_queue(60, window=2, groups=4, spool=spool) if rank == 0 else None
loader = rollouts.Loader(queue, seq_len=64, layout=layout)
if saved:
    loader.load_state_dict(saved["state"])

def samples(seed):
    rng = random.Random(seed)
    while (ticket := queue.get()) is not None:
        given = list(answers(ticket))
        for answer in given:
            threading.Event().wait(rng.random() / 1000)
            if not queue.put(ticket, answer):
                break

if rank == 0:
    for number in range(3):
        threading.Thread(target=samples, args=(number,), daemon=True).start()
rng = random.Random(f"{seed} {rank}")
dying = int(kill) >= 0 and int(kill) % ranks == rank
left = rng.randrange(1, 7)
for step in loader:
    serials = []
    for batch in step:
        serials += batch.document_fields["prompt_serial"].tolist()
        if dying and left <= 1 and rng.random() < 0.5:
            os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    if dying and left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    everyone = [None] * ranks
    dist.all_gather_object(everyone, (serials, len(step), step.index, step.num_loss_tokens))
    assert len({each[1:] for each in everyone}) == 1, everyone
    if rank == 0:
        steps = (saved or {"steps": []})["steps"] + [sum((each[0] for each in everyone), [])]
        saved = {"steps": steps, "state": loader.state_dict()}
        with open(folder + "/new", "w") as file:
            json.dump(saved, file)
        os.replace(folder + "/new", folder + "/saved")
        loader.saved(saved["state"])
    loader.published(step.index + 1)
print("ended")
os._exit(0)  # samplers may still wait
"""


def run(host: Host, folder: Path, ranks: int, layout: str, kill: int, seed: int) -> bool:
    """Run to the end, or to the kill of a rank; return whether all ranks came to the end."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    statuses, output = host.run_job(program, folder, layout, kill, seed, processes=ranks)
    if kill < 0:
        assert statuses == [0] * ranks, output
    return statuses == [0] * ranks


def check_trained(folder: Path) -> None:
    steps = json.loads((folder / "saved").read_text())["steps"]
    trained = Counter(serial for step in steps for serial in step)
    assert trained == dict.fromkeys(range(60), 2)


def test_ranks_that_are_killed_resume_on_another_number_and_train_each_prompt_once(
    host: Host, tmp_path: Path
) -> None:
    run(host, tmp_path, 2, "tree", kill=1, seed=0)
    run(host, tmp_path, 1, "tree", kill=-1, seed=2)
    check_trained(tmp_path)


REPLICAS = """
import torch.distributed as dist
from streampack import Topology, rollouts
from tests.support.rollout_runs import make_queue, sample, serials_of

dist.init_process_group("gloo")
rank = dist.get_rank()
queue = make_queue(20) if rank == 0 else None
loader = rollouts.Loader(queue, seq_len=64, topology=Topology(rank % 2, 2))
steps = []
for step in loader if queue is None or sample(queue) else ():
    steps.append(serials_of(step))
    loader.published(step.index + 1)
    if queue is not None:
        sample(queue)
everyone = [None] * 4
dist.all_gather_object(everyone, steps)
assert everyone[0] == everyone[2] and everyone[1] == everyone[3], everyone
both = sum(everyone[0] + everyone[1], [])
assert sorted(both) == sorted([*range(20), *range(20)]), both
assert loader.state_dict() == {} or rank == 0
print("ended")
"""


def test_processes_of_one_model_get_the_same_rows(host: Host, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(REPLICAS)
    statuses, output = host.run_job(program, processes=4)
    assert (statuses, output.count("ended")) == ([0] * 4, 4), output


COMPILING = """
import threading
import torch.distributed as dist
from streampack import rollouts

dist.init_process_group("gloo")
queue = None
if dist.get_rank() == 0:
    prompts = rollouts.Prompts([[number] * 30 for number in range(64)], epochs=1)
    queue = rollouts.Queue(prompts, answers=16, groups=32)

    def sample():
        while (ticket := queue.get()) is not None:
            for number in range(ticket.answers):
                ids = [*ticket.prompt.tolist(), *range(500 + 7 * number + ticket.serial)]
                queue.put(ticket, rollouts.Answer(ids, [0] * 30 + [1] * (len(ids) - 30)))

    threading.Thread(target=sample, daemon=True).start()
loader = rollouts.Loader(queue, seq_len=8192, layout="tree", rank_timeout_s=5)
for step in loader:
    loader.published(step.index + 1)
print("ended")
"""


@pytest.mark.slow
def test_a_first_process_that_compiles_for_long_is_waited_for(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(COMPILING)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "NUMBA_CACHE_DIR": str(tmp_path / "none"),
    }  # fmt: skip
    done = subprocess.run(
        [*command, str(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.count("ended")) == (0, 2), done.stderr
    assert "Compiling kernels" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_thirty_kills_of_ranks_lose_no_prompt(host: Host, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for leg in range(8):
        ranks = rng.choice([1, 2, 4])
        layout = rng.choice(["tree", "tree", "documents"])  # with a spool, and without
        if run(host, tmp_path, ranks, layout, rng.randrange(ranks), 100 * seed + leg):
            break
    else:
        run(host, tmp_path, 2, "tree", -1, seed)
    check_trained(tmp_path)
