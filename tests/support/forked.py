"""Programs in processes forked from one that has imported torch and loaded the kernels.

Each is the `__main__` of its process, as if Python had been started with it, which would take two
seconds of a core for the imports alone.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAIT_S = 500  # for programs that would otherwise wait for ever

HOST = """
import importlib, json, os, signal, sys, time
import torch.distributed
from streampack import PackedLoader, Topology
from tests.support.runs import make_dataset, uneven

def program():
    for line in sys.stdin:
        if (asked := json.loads(line)) is None:
            break
        children = []
        for number, environment in enumerate(asked["environments"]):
            children.append(os.fork())
            if children[-1] == 0:
                os.chdir(asked["folder"])
                os.environ.update(environment)
                output = os.open(f"output-{number}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
                for stream, new in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
                    os.dup2(new, stream)
                return asked["arguments"]
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
    sys.exit()

for name in sys.argv[1:]:
    importlib.import_module(name)
for own in (make_dataset(), uneven(Topology())):
    for batch in PackedLoader(own):
        batch.labels
    del own, batch
sys.argv = program()
__file__ = sys.argv[0]
sys.path.insert(0, os.path.dirname(__file__))
exec(compile(open(__file__).read(), __file__, "exec"))
"""


class Host:
    """The process from which they are forked, which has imported some modules for them.

    Args:
        modules: their names.
        paths: folders that come first where Python looks for modules.
    """

    def __init__(self, *modules: str, paths: Sequence[Path] = ()) -> None:
        path = os.pathsep.join(map(str, [*paths, ROOT]))
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOST, *modules],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(
        self,
        program: Path,
        *arguments: object,
        environments: tuple[Mapping[str, str], ...] = ({},),
        folder: Path | None = None,
    ) -> tuple[list[int], str]:
        """Run a program once for each environment; return the exit statuses and the joint output.

        They run in its folder, if no other is given.
        """
        folder = folder or program.parent
        asked = {
            "folder": str(folder),
            "arguments": [str(program), *map(str, arguments)],
            "environments": environments,
            "seconds": WAIT_S,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        statuses = json.loads(self._process.stdout.readline())
        files = [folder / f"output-{number}" for number in range(len(environments))]
        return statuses, "".join(file.read_text() for file in files)

    def run_job(self, program: Path, *arguments: object, processes: int) -> tuple[list[int], str]:
        """Run a program as the processes of one job, which find one another as under torchrun."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        ranks = tuple(
            {**place, "RANK": str(rank), "WORLD_SIZE": str(processes)} for rank in range(processes)
        )
        return self.run(program, *arguments, environments=ranks)

    def end(self) -> None:
        """End it."""
        self._process.communicate("null\n", timeout=WAIT_S)


@pytest.fixture(scope="package")
def host() -> Iterator[Host]:
    """A `Host` for the tests of a folder."""
    made = Host()
    yield made
    made.end()
