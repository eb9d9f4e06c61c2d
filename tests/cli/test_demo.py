"""`streampack demo` runs the demo of a checkout, and says where it is to be had without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def streampack(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program of the package in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "streampack", *arguments],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_without_a_checkout_the_command_says_how_to_get_the_demo_and_with_one_it_runs_it(
    tmp_path: Path,
) -> None:
    def copy(name: str) -> None:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / "installed" / name, ignore=ignored)

    copy("streampack")
    for arguments in ([], ["--fast"], ["--help"]):
        refused = streampack(tmp_path / "installed", "demo", *arguments)
        assert refused.returncode == 1
        assert "not part of the installed package" in refused.stderr
        assert "run `bash scripts/demo.sh` in the clone" in refused.stderr
    assert 'streampack demo "$@"' in (ROOT / "scripts" / "demo.sh").read_text()
    copy("demo")
    called = streampack(tmp_path / "installed", "demo", "--steps", "3")
    assert called.returncode == 1
    assert "3 steps were asked for" in called.stderr
    helped = streampack(tmp_path / "installed", "demo", "--help")
    assert helped.returncode == 0
    assert "--keep" in helped.stdout
