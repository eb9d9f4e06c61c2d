"""Samplers in other processes of the machine."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from streampack import rollouts
from streampack.errors import ConfigError, RankError
from tests.support.rollout_runs import SEQ_LEN, make_queue, serials_of

SAMPLER = """
import asyncio, os, signal, sys
from streampack import rollouts

address, kind = sys.argv[1:]
queue = rollouts.RemoteQueue(address)
if kind == "killed":
    [queue.get() for _ in range(3)]
    os.kill(os.getpid(), signal.SIGKILL)

def answer(ticket):
    for number in range(ticket.answers):
        ids = [*ticket.prompt.tolist(), 1000 + number]
        assert queue.put(ticket, rollouts.Answer(ids, [0] * (len(ids) - 1) + [1]))

async def samples():
    while (ticket := await queue.aget()) is not None:
        answer(ticket)

if kind == "async":
    asyncio.run(samples())
else:
    while (ticket := queue.get()) is not None:
        answer(ticket)
assert "torch" not in sys.modules
"""


def start(address: Path, kind: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SAMPLER, str(address), kind])


def test_processes_sample_and_the_prompts_of_a_killed_one_go_to_others(tmp_path: Path) -> None:
    queue = make_queue(30, timeout_s=1.0, max_attempts=9)
    rollouts.serve(queue, str(tmp_path / "samplers.json"))
    killed = start(tmp_path / "samplers.json", "killed")
    assert killed.wait(60) == -9
    assert queue.metrics().in_flight == 3
    samplers = [start(tmp_path / "samplers.json", kind) for kind in ("threads", "async")]
    loader = rollouts.Loader(queue, seq_len=SEQ_LEN)
    trained = Counter[int]()
    for step in loader:
        trained.update(serials_of(step))
        loader.published(step.index + 1)
    assert trained == dict.fromkeys(range(30), 2)
    assert [sampler.wait(60) for sampler in samplers] == [0, 0]
    assert queue.metrics().counts.given_back >= 3


def test_a_sampler_without_a_trainer_gets_an_error(tmp_path: Path) -> None:
    with pytest.raises(RankError):
        rollouts.RemoteQueue(str(tmp_path / "samplers.json"))


def test_errors_of_the_queue_reach_the_sampler(tmp_path: Path) -> None:
    rollouts.serve(make_queue(30), str(tmp_path / "samplers.json"))
    queue = rollouts.RemoteQueue(str(tmp_path / "samplers.json"))
    ticket = queue.get()
    assert ticket is not None
    with pytest.raises(ConfigError) as error:
        queue.put(ticket, "answer")  # type: ignore[arg-type]
    assert error.value.setting == "answer"
    assert queue.give_back(ticket, "too hard")
    assert not queue.reject(ticket)


def test_the_file_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    for count in (3, 4):
        rollouts.serve(make_queue(count), str(tmp_path / "samplers.json"))
    assert rollouts.RemoteQueue(str(tmp_path / "samplers.json")).get() is not None
    assert (tmp_path / "samplers.json").stat().st_mode & 0o77 == 0


def test_an_address_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        rollouts.serve(make_queue(3), str(tmp_path / "missing" / "samplers.json"))
    assert error.value.setting == "address"
