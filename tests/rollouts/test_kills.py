"""Trainer ranks, samplers, and both are killed at random moments, with and without a spool."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType

import pytest

from streampack.rollouts.step import steps_of_ranks
from tests.support.forked import ROOT, Host
from tests.support.rollout_runs import make_queue, sample, serials_of

PROMPTS = 240

#: Answers tickets of whichever trainer runs; every ninth prompt takes long and has long answers.
SAMPLER = """
import random, sys, time
from streampack import rollouts
from streampack.errors import RankError
from tests.support.rollout_runs import answers

folder, seed = sys.argv[1:]
rng = random.Random(seed)
while True:
    try:
        queue = rollouts.RemoteQueue(folder + "/samplers.json")
        while (ticket := queue.get()) is not None:
            with open(folder + "/version") as file:
                version = int(file.read())
            if ticket.serial % 11 == 5:
                queue.reject(ticket, "all rewards equal")
                continue
            for answer in answers(ticket, version):
                time.sleep(0.3 if ticket.serial % 9 == 0 else rng.random() / 25)
                if not queue.put(ticket, answer):
                    break
    except RankError:
        time.sleep(0.02)  # until the trainer is resumed
"""

TRAINER = """
import json, os, random, signal, sys, threading
import torch.distributed as dist
from streampack import rollouts
from tests.support.rollout_runs import make_queue

folder, spooled, kill_after_s, dying, layout = sys.argv[1:]
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
saved = {"trained": [], "state": None}
if os.path.exists(folder + "/saved"):
    saved = json.load(open(folder + "/saved"))

def replace(name, content):
    with open(f"{folder}/{name}.new", "w") as file:
        file.write(content)
    os.replace(f"{folder}/{name}.new", f"{folder}/{name}")

queue = None
if rank == 0:
    queue = make_queue(
        PROMPTS, groups=4, window=2, timeout_s=1.0, max_attempts=1000,
        spool=folder + "/spool" if spooled == "True" else None,
    )
loader = rollouts.Loader(queue, seq_len=64, layout=layout, rank_timeout_s=60)
if rank == 0:
    steps = 0
    if saved["state"]:
        steps = saved["state"]["steps"]
        loader.load_state_dict(saved["state"])
    replace("version", str(steps))
    rollouts.serve(queue, folder + "/samplers.json")
if rank == int(dying):
    killed = threading.Timer(float(kill_after_s), os.kill, (os.getpid(), signal.SIGKILL))
    killed.daemon = True
    killed.start()
for step in loader:
    pairs = []
    for batch in step:
        columns = batch.document_fields
        pairs += zip(columns["prompt_serial"].tolist(), columns["advantage"].tolist())
        for oldest, newest in zip(columns["version_min"], columns["version_max"]):
            assert newest <= step.index, "sampled with weights that the kill undid"
            assert step.index - oldest <= 3, "older than the bound"
    everyone = [None] * ranks
    dist.all_gather_object(everyone, (pairs, len(step), step.index, step.num_loss_tokens))
    assert len({each[1:] for each in everyone}) == 1, everyone
    if rank == 0:
        assert step.ages.max() <= queue.rule.most_age == 3
        trained = saved["trained"] + sum((each[0] for each in everyone), [])
        saved = {"trained": trained, "state": loader.state_dict()}
        replace("saved", json.dumps(saved))
        loader.saved(saved["state"])
        replace("version", str(step.index + 1))
    loader.published(step.index + 1)
if rank == 0:
    saved["state"] = loader.state_dict()
    saved["restored"] = queue.metrics().restored
    replace("saved", json.dumps(saved))
print("ended")
os._exit(0)  # samplers may still wait
""".replace("PROMPTS", str(PROMPTS))


class Samplers:
    """Three sampler processes; if `killed`, a random one dies now and then, and is replaced."""

    def __init__(self, folder: Path, seed: int, killed: bool) -> None:
        self.kills = 0
        self._folder, self._rng, self._killed = folder, random.Random(seed), killed
        self._running = [self._start() for _ in range(3)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._kill)

    def __enter__(self) -> Samplers:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        for each in self._running:
            each.kill()
            each.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = [str(self._folder), str(self._rng.random())]
        return subprocess.Popen([sys.executable, "-c", SAMPLER, *arguments], cwd=ROOT)

    def _kill(self) -> None:
        while self._killed and not self._stop.wait(self._rng.uniform(1, 4)):
            self._running.sort(key=lambda _: self._rng.random())
            assert self._running[0].poll() is None
            self._running[0].kill()
            self._running[0].wait()
            self._running[0] = self._start()
            self.kills += 1


@pytest.mark.slow
@pytest.mark.parametrize("spool", [False, True])
@pytest.mark.parametrize("dying", ["ranks", "samplers", "both"])
def test_processes_killed_at_random_moments_lose_no_prompt_and_train_none_twice(
    host: Host, tmp_path: Path, dying: str, spool: bool
) -> None:
    compile_plans()
    rng = random.Random(f"{dying} {spool}")
    program, saved = tmp_path / "program.py", tmp_path / "saved"
    program.write_text(TRAINER)
    kills, last_next = 0, 0
    with Samplers(tmp_path, rng.randrange(1 << 30), dying != "ranks") as samplers:
        for _ in range(30):
            ranks, layout = rng.choice([1, 2, 4]), rng.choice(["tree", "documents"])
            killed = rng.randrange(ranks) if dying != "samplers" and kills < 6 else -1
            statuses, output = host.run_job(
                program, tmp_path, spool, rng.uniform(0, 2), killed, layout, processes=ranks
            )
            assert "AssertionError" not in output, output
            if saved.exists():
                last_next = check(json.loads(saved.read_text()), last_next)
            if statuses == [0] * ranks:
                break
            assert statuses[killed] == -9, output
            kills += 1
    assert statuses == [0] * ranks, output
    checkpoint = json.loads(saved.read_text())
    counts = checkpoint["state"]["counts"]
    rejected = {serial for serial in range(PROMPTS) if serial % 11 == 5}
    trained = {*range(PROMPTS)} - rejected
    assert Counter(map(tuple, checkpoint["trained"])) == {
        (s, n): 1 for s in trained for n in (0.0, 1.0)
    }
    assert (counts["rejected"], counts["failed"]) == (len(rejected), 0)
    assert checkpoint["state"]["in_flight"] == []
    print(f"{kills} kills of ranks, {samplers.kills} of samplers")
    assert kills + samplers.kills > 0


def compile_plans() -> None:
    """Compile the plans of steps in the cache, before ranks wait for one another."""
    queue = make_queue(8, groups=8)
    sample(queue)
    for ranks, layout in itertools.product((1, 2, 4), ("documents", "tree")):
        for rank, step in enumerate(
            steps_of_ranks(
                0, queue._schedule.untrained(), ranks=ranks, layout=layout, options={"seq_len": 64}
            )
        ):
            assert serials_of(step) or rank


def check(checkpoint: dict, last_next: int) -> int:  # type: ignore[type-arg]
    """Check a checkpoint: every dispatched prompt is in flight, trained or rejected; never two."""
    state, trained = checkpoint["state"], {serial for serial, _ in checkpoint["trained"]}
    flying = {serial for serial, _ in state["in_flight"]}
    assert not flying & trained
    ended = len(trained) + state["counts"]["rejected"] + state["counts"]["failed"]
    assert ended + len(flying) == state["next"] >= last_next
    assert {*range(state["next"])} - flying - trained <= {n for n in range(PROMPTS) if n % 11 == 5}
    return int(state["next"])
