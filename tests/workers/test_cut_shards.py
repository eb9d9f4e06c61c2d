"""A mapped shard that is cut in place during a run ends a worker, and the loop names the cause."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader, WindowConfig, sources
from streampack.errors import ContentError, StateError, WorkerError


def test_the_loop_names_a_shard_that_was_cut_as_the_cause_of_a_dead_worker(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(8 << 20, dtype=np.uint16) % 50_000 + 1)
    source = sources.open(path, eos_id=1)
    dataset = PackedDataset(
        source, seq_len=256, batch_size=2, window=WindowConfig(rows=16), shuffle=False
    )
    batches = iter(PackedLoader(dataset, num_workers=1))
    next(batches)
    os.truncate(path, 4096)
    with pytest.raises((WorkerError, StateError, ContentError)) as caught:
        for _ in batches:
            pass
    if isinstance(caught.value, WorkerError):
        assert f"signal {int(signal.SIGBUS)}" in caught.value.fact
        assert "mapped" in caught.value.fact
