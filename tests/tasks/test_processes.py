"""Tasks in processes: a death costs the task in hand, errors come with their traceback."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from streampack.errors import ConfigError, WorkerError
from streampack.tasks.children import Child
from streampack.tasks.processes import in_processes


def square(job: Any, number: int) -> Any:
    """Note that the task begins; die or fail if the job asks for it."""
    with open(Path(job["folder"]) / str(number), "a") as file:
        file.write("begun\n")
    count = len((Path(job["folder"]) / str(number)).read_text().splitlines())
    if count <= job.get("deaths", {}).get(number, 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if number == job.get("fails"):
        raise KeyError(number)
    if number == job.get("unsendable"):
        return lambda: number
    return number * number


TASKS = [(number,) for number in range(6)]


def test_a_death_costs_the_task_in_hand_alone(tmp_path: Path) -> None:
    job = {"folder": str(tmp_path), "deaths": {2: 1, 3: 2}}
    assert sorted(in_processes(2)(square, job, TASKS)) == [0, 1, 4, 9, 16, 25]
    begun = {int(path.name): len(path.read_text().splitlines()) for path in tmp_path.iterdir()}
    assert begun == {0: 1, 1: 1, 2: 2, 3: 3, 4: 1, 5: 1}
    assert not multiprocessing.active_children()


def test_a_task_that_kills_every_process_is_an_error(tmp_path: Path) -> None:
    job = {"folder": str(tmp_path), "deaths": {1: 100}}
    with pytest.raises(WorkerError, match="square died 4 times"):
        list(in_processes(2)(square, job, TASKS))
    assert not multiprocessing.active_children()


def test_an_error_of_a_task_comes_with_its_traceback(tmp_path: Path) -> None:
    job = {"folder": str(tmp_path), "fails": 3}
    with pytest.raises(KeyError) as caught:
        list(in_processes(2)(square, job, TASKS))
    assert "in square" in str(caught.value.__cause__)
    with pytest.raises(AttributeError, match="lambda"):
        list(in_processes(2)(square, {"folder": str(tmp_path), "unsendable": 3}, TASKS))
    assert not multiprocessing.active_children()


def test_a_job_that_cannot_be_sent_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        list(in_processes(2)(square, {"function": lambda: None}, TASKS))
    assert caught.value.setting == "workers"


def import_slow_module(pipe: Any) -> None:
    signal.alarm(60)  # it would wait for ever
    pipe.send(import_module("imported_slowly").__name__)


def test_a_fork_while_a_thread_imports_a_module_can_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_slowly.py").write_text("import time; time.sleep(0.3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    thread = threading.Thread(target=import_module, args=("imported_slowly",))
    thread.start()
    while "imported_slowly" not in sys.modules:
        time.sleep(0.001)
    child = Child(multiprocessing.get_context("fork"), import_slow_module)
    assert child.pipe.recv() == "imported_slowly"
    child.end()
    thread.join()
