"""No damage makes a kernel read outside of a shard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow  # all kernels are compiled again
def test_no_kernel_leaves_a_damaged_shard(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    # Code with checks is kept apart: numba's cache does not know them from one another.
    cache = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    arguments = ["-m", "tests.support.damaged_shards", str(tmp_path / "shards"), "0", "400"]
    run = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **cache},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for name, (read, refused) in json.loads(run.stdout).items():
        assert refused > 20, name
        assert read > 0, name
