"""Programs that do unusual things with processes, threads and streams around a loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forked import End, Host

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

    class Busy(state.RoundStart):  # a loop in another thread that is asked for its state just now
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
    running = loader = iter(loader)
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
"""
CLOSED_STREAMS_ELSEWHERE = (
    CLOSED_STREAMS
    + """
    for method in ("spawn", "forkserver"):
        other = PackedLoader(make_dataset(), num_workers=2, multiprocessing_context=method)
        assert run(other) == expected
"""
)

INTERRUPTED_SPAWNED = """
    spawned = PackedLoader(make_dataset(), num_workers=2, multiprocessing_context="spawn")
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
    from streampack.tasks.children import Child
    end = Child.end
    def slowly(child):
        os.kill(os.getpid(), signal.SIGINT)  # as from a terminal, in the middle of it
        time.sleep(0.1)
        end(child)
    Child.end = slowly
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


CHILD = """
            try:
                next(running)
            except WorkerError as error:
                os._exit("parent" not in error.fact)
            os._exit(1)"""
#: The others are left to the night.
GATE = (
    "sigchld is ignored",
    "a child goes on with the loop",
    "workers are forked while a state is made",
    "interrupted twice",
)
#: Actions of a program; it may report that its workers are interrupted.
PROGRAMS = {
    "sigchld is ignored": SIGCHLD_IGNORED,
    "a child goes on with the loop": FORKED_INSIDE % CHILD,
    "workers are forked while a state is made": FORKED_BESIDE,
    "loaders in four threads over one dataset": FOUR_THREADS,
    "no standard streams": CLOSED_STREAMS,
    "no standard streams elsewhere": CLOSED_STREAMS_ELSEWHERE,
    "spawned workers are interrupted": INTERRUPTED_SPAWNED,
    "interrupted twice": INTERRUPTED_IN_CLEAN_UP.replace("METHOD", "'fork'"),
    "interrupted twice elsewhere": INTERRUPTED_IN_CLEAN_UP.replace("METHOD", "'forkserver'"),
    "loops are left open": LEFT_OPEN,
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in GATE else pytest.mark.slow) for name in PROGRAMS],
)
def test_a_program_ends_well_and_in_silence(host: Host, tmp_path: Path, name: str) -> None:
    (tmp_path / "program.py").write_text(BEGINNING + PROGRAMS[name])
    end: End = "whole" if name == "loops are left open" else "usual"
    (status,), output = host.run(tmp_path / "program.py", end=end)
    assert status == 0, output[-3000:]
    assert "Traceback" not in output or "interrupted twice" in name
