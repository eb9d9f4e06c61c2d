"""The program itself: its version, its name as a module, and its lines on a terminal."""

from __future__ import annotations

import subprocess
import sys

import streampack


def test_the_version_is_told_by_the_module_that_is_the_program() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "streampack", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == f"streampack {streampack.__version__}\n"
