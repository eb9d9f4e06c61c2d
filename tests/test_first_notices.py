"""One process of a job logs a notice; another job, or another notice, has its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ASKS = """
import multiprocessing, sys
from streampack.notices import is_first

def ask(pipe, notice):
    pipe.send(is_first(notice))

if __name__ == "__main__":
    context, answers = multiprocessing.get_context(sys.argv[1]), []
    for _ in range(3):
        ours, theirs = context.Pipe()
        process = context.Process(target=ask, args=(theirs, "compiling"))
        process.start()
        answers.append(ours.recv())
        process.join()
    print(answers, is_first("compiling"), is_first("cannot be kept"), is_first("cannot be kept"))
"""


def asked(folder: Path, *arguments: str, **variables: str) -> str:
    environment = {**os.environ, "TMPDIR": str(folder), **variables}
    script = folder / "asks.py"
    script.write_text(ASKS)
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def test_one_of_a_loop_and_its_workers_is_first_and_so_is_one_of_the_next_job(
    tmp_path: Path,
) -> None:
    for start in ("fork", "spawn"):
        expected = "[True, False, False] False True False"
        assert asked(tmp_path, start) == expected
        assert asked(tmp_path, start) == expected  # another job, a moment later


def test_one_of_the_ranks_of_a_launcher_is_first(tmp_path: Path) -> None:
    assert asked(tmp_path, "spawn", LOCAL_RANK="0") == "[True, False, False] False True False"
    assert asked(tmp_path, "spawn", LOCAL_RANK="1") == "[True, False, False] False False False"


def test_a_damaged_file_of_notices_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / f".streampack-{os.getuid()}-notices").write_text('{"a')
    assert asked(tmp_path, "fork") == "[True, False, False] False True False"
