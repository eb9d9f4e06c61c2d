"""Packed batches of random documents, for tests of what consumers make of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampack import PackedBatch, PackedDataset, Topology
from streampack.packing import Packer
from tests.memory_source import MemorySource

PAD, EOS, VOCAB = 90, 91, 92


def random_documents(lengths: list[int], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 90, n).astype(np.uint16) for n in lengths]


def packed_batches(
    documents: list[Any], packer: Packer, masks: Any = None, **options: Any
) -> list[PackedBatch]:
    """All batches of one lane."""
    dataset = PackedDataset(
        MemorySource([documents], None if masks is None else [masks], block_documents=8),
        packer=packer,
        pad_id=PAD,
        eos_id=EOS,
        lanes=1,
        topology=Topology(),
        **options,
    )
    return list(dataset)
