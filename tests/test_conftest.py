"""The test processes themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys

class Seen:
    def find_spec(self, name, path=None, target=None):
        if name in ("numpy", "torch"):
            print(os.environ.get("OMP_NUM_THREADS"))

sys.meta_path.insert(0, Seen())
import tests.conftest
import torch
"""


def test_threads_are_limited_before_a_library_that_reads_the_number_is_imported() -> None:
    # With several threads of libgomp, ranks that tests fork from their process never end.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    del environment["OMP_NUM_THREADS"]  # set by tests.conftest in this process
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert {*done.stdout.split()} == {"1"}
