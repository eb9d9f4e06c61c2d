"""Kernels are compiled once per host and by any thread or fork, whatever the state of the cache."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = """
import numpy as np
from streampack._jit import kernel

@kernel
def total(numbers):
    result = np.int64(0)
    for number in numbers:
        result += np.int64(number)
    return result
"""
LOAD = """
import importlib.util, os, sys, threading, time
import numpy as np
spec = importlib.util.spec_from_file_location("streampack.of_test", sys.argv[1])
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
total, numbers = module.total, np.arange(9)
"""
CALL = "print(total(numbers), *total.compiled.call.stats.cache_hits.values())"
STOPS = """
from numba.core import event
class Stop(event.Listener):
    def on_start(self, started):
        if "total" in str(started.data["dispatcher"]):
            print("compiling", flush=True)
            time.sleep(600)
    def on_end(self, ended):
        pass
import streampack._compiler
event.register("numba:compile", Stop())
total(numbers)
"""
THREADS = """
kinds = [np.arange(9, dtype=kind) for kind in (np.int16, np.int32, np.int64)] * 4
together, sums = threading.Barrier(len(kinds)), []
def call(numbers):
    together.wait()
    sums.append(total(numbers))
threads = [threading.Thread(target=call, args=(kind,)) for kind in kinds]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(set(sums), len(sums), len(total.compiled.call.signatures))
"""
FORKS_IN_COMPILATION = """
from numba.core import event
begun = threading.Event()
class Begin(event.Listener):
    def on_start(self, started):
        if "total" in str(started.data["dispatcher"]):
            begun.set()
            time.sleep(0.2)
    def on_end(self, ended):
        pass
import streampack._compiler
event.register("numba:compile", Begin())
"""
FORKS_IN_IMPORT = """
class Begun:
    def wait(self):
        while "numba" not in sys.modules:
            time.sleep(0.001)
begun = Begun()
"""
FORKS = """
thread = threading.Thread(target=total, args=(numbers,))
thread.start()
begun.wait()
if (child := os.fork()) == 0:
    os._exit(total(numbers.astype(np.int32)))
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a kernel, and for caches and temporary files."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def start(folder: Path, script: str, **variables: str) -> subprocess.Popen[str]:
    own = {
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "NUMBA_DISABLE_JIT": "0",
        "TMPDIR": str(folder / "tmp"),
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "-c", LOAD + script, str(folder / "kernel.py")],
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the output and the errors of a process, once it has succeeded."""
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return out, errors


def test_of_two_processes_that_start_at_once_one_compiles(folder: Path) -> None:
    processes = [start(folder, CALL) for _ in range(2)]
    assert sorted(finish(process)[0] for process in processes) == ["36\n", "36 1\n"]


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_compiles_leaves_the_turn_to_others(folder: Path) -> None:
    first = start(folder, STOPS)
    assert first.stdout is not None
    assert first.stdout.readline() == "compiling\n"
    second = start(folder, 'print("waits", flush=True)\n' + CALL)
    assert second.stdout is not None
    assert second.stdout.readline() == "waits\n"
    first.kill()
    first.communicate()
    assert finish(second)[0] == "36\n"


@pytest.mark.slow
def test_a_process_that_never_ends_its_turn_is_waited_for_once(folder: Path) -> None:
    first = start(folder, STOPS)
    assert first.stdout is not None
    assert first.stdout.readline() == "compiling\n"
    short = "import streampack._compiling\nstreampack._compiling._Patience.left_s = 0.2\n"
    try:
        assert finish(start(folder, short + CALL))[0] == "36\n"
    finally:
        first.kill()
        first.communicate()


def test_threads_that_call_one_kernel_at_once_compile_it_once_for_each_type(folder: Path) -> None:
    assert finish(start(folder, THREADS))[0] == "{36} 12 3\n"


@pytest.mark.parametrize(
    "during",
    [
        pytest.param(FORKS_IN_IMPORT, id="import of numba"),
        pytest.param(FORKS_IN_COMPILATION, id="compilation", marks=pytest.mark.slow),
    ],
)
def test_a_fork_beside_a_thread_that_compiles_can_compile(folder: Path, during: str) -> None:
    assert finish(start(folder, during + FORKS))[0] == "36\n"


def test_without_a_writable_cache_kernels_are_compiled_and_that_is_logged(folder: Path) -> None:
    (folder / "__pycache__").write_text("a file")
    (folder / "numba").write_text("a file")
    elsewhere = {"XDG_CACHE_HOME": str(folder / "numba"), "HOME": str(folder / "numba")}
    out, errors = finish(start(folder, CALL, **elsewhere))
    assert out == "36\n"
    assert "NUMBA_CACHE_DIR" in errors


@pytest.mark.slow
def test_a_cache_on_a_full_disk_is_done_without_and_later_written(folder: Path) -> None:
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (600, -1))\n"
    out, errors = finish(start(folder, full + CALL))
    assert out == "36\n"
    assert str(folder / "numba") in errors
    assert "NUMBA_CACHE_DIR" in errors
    assert finish(start(folder, CALL))[0] == "36\n"
    assert finish(start(folder, CALL))[0] == "36 1\n"


@pytest.mark.slow
def test_a_cache_that_names_classes_of_another_version_is_written_anew(folder: Path) -> None:
    finish(start(folder, CALL))
    (index,) = (folder / "numba").rglob("*.nbi")
    stream = io.BytesIO(index.read_bytes())
    version = pickle.load(stream)  # numba's, before the entries
    gone = b"cstreampack.packing.plan\nGone\n."  # a class that an upgrade has removed
    index.write_bytes(pickle.dumps(version) + gone)
    assert finish(start(folder, CALL))[0] == "36\n"
    assert finish(start(folder, CALL)) == ("36 1\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_a_damaged_cache_is_done_without_and_later_written(folder: Path, ending: str) -> None:
    finish(start(folder, CALL))
    (damaged,) = (folder / "numba").rglob(f"*{ending}")
    damaged.write_bytes(damaged.read_bytes()[:20])
    out, errors = finish(start(folder, CALL))
    assert out == "36\n"
    assert str(folder / "numba") in errors
    finish(start(folder, CALL))
    assert finish(start(folder, CALL)) == ("36 1\n", "")


EXTENDED = """
print(total(numbers), "extension" in sys.modules)
import numba
print(numba.njit(lambda number: number)(1), "extension" in sys.modules)
"""


@pytest.mark.slow
def test_packages_that_extend_numba_are_imported_for_users_kernels_alone(folder: Path) -> None:
    """As awkward does, which gigatoken requires: a second and 50 MB of each process."""
    (folder / "extension.py").write_text("def begin(): pass\n")
    (folder / "extension-1.dist-info").mkdir()
    entry = "[numba_extensions]\ninit = extension:begin\n"
    (folder / "extension-1.dist-info" / "entry_points.txt").write_text(entry)
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    assert finish(start(folder, EXTENDED, PYTHONPATH=paths))[0] == "36 False\n1 True\n"
