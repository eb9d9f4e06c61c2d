"""No damage makes a kernel read outside of a shard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow  # all kernels are compiled with checks
def test_no_kernel_leaves_a_damaged_shard(tmp_path: Path) -> None:
    # Code with checks is kept apart: numba's cache does not know them from one another.
    checks = {
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        "NUMBA_DISABLE_JIT": "0",  # kernels are compiled from the first call
    }
    tests = [str(Path(__file__).with_name("test_damage.py")), "-k", "flipped or cut_short"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests],
        env={**os.environ, **checks},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout[-3000:]
