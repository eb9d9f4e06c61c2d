"""Ray Train's loader, which takes a batch ahead, does not train on a PackedLoader."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from streampack import PackedDataset, PackedLoader, Topology
from streampack.errors import ConfigError

DOCUMENTS = [[1, 2, 3]] * 50


def prepared(loader: PackedLoader) -> Any:
    """The loader as `prepare_data_loader` wraps it in a worker."""
    utils = pytest.importorskip("ray.train.torch.train_loop_utils")
    return utils._WrappedDataLoader(loader, torch.device("cpu"), auto_transfer=False)


@pytest.mark.parametrize("workers", [0, 1])
def test_ray_is_refused_a_loader_with_a_state_that_it_would_run_ahead_of(workers: int) -> None:
    loader = PackedLoader(
        PackedDataset(DOCUMENTS, seq_len=8, topology=Topology()), num_workers=workers
    )
    with pytest.raises(ConfigError) as caught:
        next(iter(prepared(loader)))
    assert caught.value.setting == "loader"


def test_ray_may_evaluate_on_a_loader() -> None:
    held_out = PackedDataset.evaluation(DOCUMENTS, seq_len=8, topology=Topology())
    batches = list(prepared(PackedLoader(held_out)))
    assert sum(batch.num_tokens for batch in batches) == 150
