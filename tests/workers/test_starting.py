"""Workers that are not forked and cannot start: the loop gets an error that names the remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forked import Host

LOOP = """
import os, signal, sys
if sys.argv[2] == "killed" and __name__ == "__mp_main__":
    os.kill(os.getpid(), signal.SIGKILL)
from streampack import PackedDataset, PackedLoader, Topology
from streampack.errors import WorkerError

# Much more than a pipe holds, so that whoever writes it waits for a reader
dataset = PackedDataset([[7] * 99] * 4000, seq_len=128, lanes=2, topology=Topology())
loader = PackedLoader(dataset, num_workers=1, multiprocessing_context=sys.argv[1])
try:
    for _ in loader:
        pass
except WorkerError as error:
    print("setting:", error.setting)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("script", "setting"), [("guardless", "multiprocessing_context"), ("killed", None)]
)
def test_a_worker_that_dies_while_it_starts_is_an_error_at_once(
    method: str, script: str, setting: str | None, host: Host, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    _, output = host.run(tmp_path / "train.py", method, script, end="usual")
    # A script without a guard also runs in its worker, which prints a setting too
    settings = [line for line in output.splitlines() if line.startswith("setting:")]
    assert settings[-1] == f"setting: {setting}", output


@pytest.mark.slow
def test_a_script_from_standard_input_cannot_spawn_workers() -> None:
    done = subprocess.run(
        [sys.executable, "-", "spawn", "stdin"],
        input=LOOP, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["setting: multiprocessing_context"], done.stderr
