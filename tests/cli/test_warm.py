"""The log of a first use, and `streampack warm`, in processes with caches of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILES = """
import numpy as np
from streampack.packing.rng import shuffle
for dtype in (np.int32, np.int64):
    shuffle(np.arange(5, dtype=dtype), 1)
"""
PACKS = """
from streampack import PackedDataset, PackedLoader
loader = PackedLoader(PackedDataset({source}, seq_len=64, lanes=1), num_workers={workers})
next(iter(loader)).labels
print(loader.metrics().batches)
"""


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program with empty folders for compiled kernels and for temporary files."""
    (folder / "tmp").mkdir(exist_ok=True)
    own = {
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "NUMBA_DISABLE_JIT": "0",  # kernels are compiled from the first call
        "TMPDIR": str(folder / "tmp"),
        **variables,
    }
    return subprocess.run(
        [sys.executable, *command], text=True, capture_output=True, env={**os.environ, **own}
    )


@pytest.mark.slow
def test_a_process_that_compiles_logs_it_once_and_the_next_logs_nothing(
    tmp_path: Path,
) -> None:
    first = run(tmp_path, "-c", COMPILES)
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("Compiling") == 1
    assert f"kept in {tmp_path / 'numba'}" in first.stderr
    assert "streampack warm" in first.stderr
    for kept in (tmp_path / "tmp").iterdir():
        kept.unlink()  # files that processes share while they compile
    assert run(tmp_path, "-c", COMPILES).stderr == ""


@pytest.mark.slow
def test_after_warm_no_first_batch_compiles(tmp_path: Path) -> None:
    warmed = run(tmp_path, "-m", "streampack", "warm")
    assert warmed.returncode == 0, warmed.stderr
    assert all(line.startswith(str(tmp_path / "numba")) for line in warmed.stdout.splitlines())
    assert len(warmed.stdout.splitlines()) > 3
    for kept in (tmp_path / "tmp").iterdir():
        kept.unlink()
    records = '[{"input_ids": [7] * 50, "w": [0.5] * 50}] * 900'
    fields = ', token_fields={"w": "float32"}'
    for source, workers in (
        ("[[7] * 50] * 900", 0),
        ("[[7] * 50] * 900", 1),
        (records + fields, 0),
    ):
        packed = run(tmp_path, "-c", PACKS.format(source=source, workers=workers))
        assert (packed.stdout, packed.stderr) == ("1\n", "")
