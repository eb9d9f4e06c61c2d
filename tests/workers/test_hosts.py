"""Programs that do unusual things with processes, threads and streams around a loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forked import Host

BEGINNING = """
import os, signal, sys, threading
from streampack import PackedLoader
from streampack.errors import WorkerError
from tests.support.runs import identity, make_dataset

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def run(loader, inside=lambda batches: None):
    batches = []
    for batch in loader:
        batches.append(identity(batch))
        inside(batches)
    return batches

if __name__ == "__main__":
    expected = run(PackedLoader(make_dataset()))
    loader = PackedLoader(make_dataset(), num_workers=2, multiprocessing_context="fork")
"""

SIGCHLD_IGNORED = """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    assert run(loader) == expected
"""

FORKED_BESIDE = """
    from streampack.lane import state
    begun, go_on, asked = threading.Event(), threading.Event(), []

    class Busy(state.Round):  # a loop in another thread that is asked for its state just now
        def __init__(self):
            pass
        @property
        def entries(self):
            begun.set()
            go_on.wait()
            raise KeyError

    def ask():
        try:
            Busy().state(0)
        except KeyError:
            asked.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    begun.wait()
    assert run(loader) == expected
    go_on.set()
    thread.join()
    assert asked
"""

FORKED_INSIDE = """
    def fork(batches):
        if len(batches) == 3 and (child := os.fork()) == 0:
            %s
        elif len(batches) == 3:
            assert os.waitpid(child, 0)[1] == 0
    assert run(loader, fork) == expected
"""
FOUR_THREADS = """
    found = []
    def loop():
        found.append(run(PackedLoader(dataset, num_workers=2, multiprocessing_context="fork")))
    dataset = make_dataset()
    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert found == [expected] * 4
"""

CLOSED_STREAMS = """
    for stream in (0, 1, 2): os.close(stream)
    assert run(loader) == expected
    for method in ("spawn", "forkserver"):
        other = PackedLoader(make_dataset(), num_workers=2, multiprocessing_context=method)
        assert run(other) == expected
"""

INTERRUPTED_TWICE = """
    spawned = PackedLoader(make_dataset(), num_workers=2, multiprocessing_context=METHOD)
    signal.signal(signal.SIGINT, lambda *_: None)
    def interrupt():
        while not done.wait(0.05):  # while they start, too
            os.killpg(0, signal.SIGINT)
    os.setpgid(0, 0)
    done = threading.Event()
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    assert run(spawned) == expected
    done.set()
    thread.join()
"""

INTERRUPTED_IN_CLEAN_UP = """
    import multiprocessing, tempfile, time
    from streampack.run import workers
    end = workers._end
    def slowly(batches):
        os.kill(os.getpid(), signal.SIGINT)  # as from a terminal, in the middle of it
        time.sleep(0.1)
        end(batches)
    workers._end = slowly
    tempfile.tempdir = os.getcwd()
    other = PackedLoader(make_dataset(), num_workers=2, multiprocessing_context=METHOD)
    try:
        for _ in other:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
    except KeyboardInterrupt:
        pass
    del other
    left = [name for name in os.listdir() if name.startswith("streampack-")]
    assert not left, left
"""

LEFT_OPEN = """
    kept, alone = iter(loader), iter(PackedLoader(make_dataset()))
    next(kept), next(alone)
"""


def ends_well(host: Host, folder: Path, program: str, silently: bool = True) -> None:
    (folder / "program.py").write_text(BEGINNING + program)
    (status,), said = host.run(folder / "program.py")
    assert status == 0, said[-3000:]
    assert "Traceback" not in said or not silently


def test_a_loop_ends_where_sigchld_is_ignored(host: Host, tmp_path: Path) -> None:
    ends_well(host, tmp_path, SIGCHLD_IGNORED)


def test_a_child_forked_inside_the_loop_that_goes_on_with_it_is_told(
    host: Host, tmp_path: Path
) -> None:
    child = """
            try:
                next(running)
            except WorkerError as error:
                os._exit("its parent's" not in str(error))
            os._exit(1)"""
    ends_well(host, tmp_path, "    running = loader = iter(loader)\n" + FORKED_INSIDE % child)


def test_workers_that_are_forked_while_a_state_is_made_do_not_wait_for_it(
    host: Host, tmp_path: Path
) -> None:
    ends_well(host, tmp_path, FORKED_BESIDE)


@pytest.mark.parametrize("attempt", range(3))
def test_loaders_in_four_threads_over_one_dataset_do_not_hang(
    host: Host, tmp_path: Path, attempt: int
) -> None:
    ends_well(host, tmp_path, FOUR_THREADS)


def test_a_program_without_standard_streams_runs(host: Host, tmp_path: Path) -> None:
    ends_well(host, tmp_path, CLOSED_STREAMS)


@pytest.mark.parametrize("method", ["spawn"])
def test_workers_that_are_spawned_say_nothing_of_ctrl_c_while_they_start(
    host: Host, tmp_path: Path, method: str
) -> None:
    ends_well(host, tmp_path, INTERRUPTED_TWICE.replace("METHOD", repr(method)))


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_a_second_ctrl_c_leaves_no_file(host: Host, tmp_path: Path, method: str) -> None:
    ends_well(host, tmp_path, INTERRUPTED_IN_CLEAN_UP.replace("METHOD", repr(method)), False)


def test_a_program_that_ends_with_loops_open_says_nothing_of_it(host: Host, tmp_path: Path) -> None:
    ends_well(host, tmp_path, LEFT_OPEN)
