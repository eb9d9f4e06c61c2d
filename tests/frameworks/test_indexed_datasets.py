"""Datasets written by Megatron-LM's own builder are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from streampack.sources import MegatronIndexed
from tests.support.source_contract import assert_source_contract

indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_files_of_megatrons_builder_are_read(dtype: type, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    documents = [
        [rng.integers(0, 999, rng.integers(1, 40)) for _ in range(rng.integers(1, 4))]
        for _ in range(23)
    ]
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=dtype)
    for document in documents:
        for part in document:
            builder.add_item(torch.tensor(part))
        builder.end_document()
    builder.finalize(str(tmp_path / "a.idx"))
    expected = [[int(token) for part in document for token in part] for document in documents]
    assert_source_contract(MegatronIndexed(tmp_path / "a"), expected, restarts=2)
