"""Functions in forked children, and programs in forked processes.

Programs run in forks of a process that has made its imports and loaded the kernels. Each is the
`__main__` of its process, as if Python had been started with it, which would take two seconds of a
core for the imports alone. Programs whose subject is a fresh interpreter (imports, caches,
compilation, spawned processes) start one instead.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

ROOT = Path(__file__).parents[2]
#: Comes first where programs look for modules: settings as in `tests/conftest.py`.
FIRST = Path(__file__).parent / "torchvision_on_cpu"
CALL = Path(__file__).with_name("call.py")
WAIT_S = 500  # for programs that would otherwise wait for ever

HOST = """
import atexit, gc, importlib, json, os, signal, sys, threading, time
import torch.distributed
from streampack import PackedLoader, Topology, rollouts, sources
from tests.support.runs import make_dataset, uneven

rollouts.Loader, rollouts.serve, sources.JSONL, sources.Parquet, sources.Storage  # imported here

def program():
    for line in sys.stdin:
        if (asked := json.loads(line)) is None:
            break
        for name in asked["modules"]:
            importlib.import_module(name)
        children = []
        for number, environment in enumerate(asked["environments"]):
            children.append(os.fork())
            if children[-1] == 0:
                os.chdir(asked["folder"])
                os.environ.update(environment)
                output = os.open(f"output-{number}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
                for stream, new in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
                    os.dup2(new, stream)
                if asked["end"] == "whole":
                    gc.unfreeze()
                return asked["arguments"], asked["end"]
        statuses, end = {}, time.monotonic() + asked["seconds"]
        while len(statuses) < len(children):
            for child in set(children) - set(statuses):
                if time.monotonic() > end:
                    os.kill(child, signal.SIGKILL)
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    statuses[child] = os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        print(json.dumps([statuses[child] for child in children]), flush=True)
    os._exit(0)  # what it has imported need not be torn down

for own in (make_dataset(), uneven(Topology())):
    for batch in PackedLoader(own):
        batch.labels
    del own, batch
gc.collect()
gc.freeze()
sys.argv, end = program()
__file__ = sys.argv[0]
sys.path.insert(0, os.path.dirname(__file__))
exec(compile(open(__file__).read(), __file__, "exec"))
if end == "brief":
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)
"""
#: The end of a program without an error. Python ends an interpreter by releasing all objects, of
#: the host too, which copies much memory and takes most of a second of a core. "brief" joins
#: threads and calls the functions of `atexit` alone; "usual" keeps the host's objects out of the
#: last collection.
End = Literal["brief", "usual", "whole"]


class Host:
    """The process from which they are forked."""

    def __init__(self) -> None:
        path = os.pathsep.join(map(str, [FIRST, ROOT]))
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOST],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(
        self,
        program: Path,
        *arguments: object,
        environments: tuple[Mapping[str, str], ...] = ({},),
        folder: Path | None = None,
        modules: Sequence[str] = (),
        end: End = "brief",
    ) -> tuple[list[int], str]:
        """Run a program once for each environment; return the exit statuses and the joint output.

        They run in its folder, if no other is given. The host imports `modules` and the helpers
        from `tests` that the program imports, once for this program and those after it. Choose
        `end` where the end of the program is the subject.
        """
        helpers = re.findall(r"^from (tests\.[\w.]+) import", program.read_text(), re.MULTILINE)
        folder = folder or program.parent
        asked = {
            "folder": str(folder),
            "arguments": [str(program), *map(str, arguments)],
            "environments": environments,
            "seconds": WAIT_S,
            "modules": [*helpers, *modules],
            "end": end,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        statuses = json.loads(self._process.stdout.readline())
        files = [folder / f"output-{number}" for number in range(len(environments))]
        return statuses, "".join(file.read_text() for file in files)

    def run_job(
        self,
        program: Path,
        *arguments: object,
        processes: int,
        modules: Sequence[str] = (),
        end: End = "brief",
    ) -> tuple[list[int], str]:
        """Run a program as the processes of one job, which find one another as under torchrun."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        ranks = tuple(
            {**place, "RANK": str(rank), "WORLD_SIZE": str(processes)} for rank in range(processes)
        )
        return self.run(program, *arguments, environments=ranks, modules=modules, end=end)

    def call(self, folder: Path, function: Callable[..., None], *arguments: object) -> None:
        """Call a function of a module in a fork, with less memory for its own forks to copy.

        An error of it fails the test with the traceback.
        """
        call = base64.b64encode(pickle.dumps((function, arguments))).decode()
        statuses, output = self.run(CALL, call, folder=folder, modules=[function.__module__])
        assert statuses == [0], output

    def end(self) -> None:
        """End it."""
        self._process.communicate("null\n", timeout=WAIT_S)


def in_fork(function: Callable[[], Any]) -> Any:
    """Return the result of a function in a forked child."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        answer: Any = "failed"
        try:
            answer = function()
        finally:
            os.write(writing, pickle.dumps(answer))
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        answer = pickle.loads(file.read())
    os.waitpid(child, 0)
    return answer


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """A `Host` for all tests of this process."""
    made = Host()
    yield made
    made.end()
