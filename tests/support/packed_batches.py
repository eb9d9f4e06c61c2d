"""Packed batches of random documents, for tests of their consumers."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampack import PackedBatch, PackedDataset, TokenRules, Topology
from streampack.packers.kinds import packer_kinds, with_rows
from streampack.packing import (
    BestFitCrop,
    BestFitDecreasing,
    Buckets,
    Concat,
    Packer,
    Pad,
    Seamless,
)
from tests.support.memory_source import MemorySource

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
        token_rules=TokenRules(pad_id=PAD, eos_id=EOS),
        lanes=1,
        topology=Topology(),
        **options,
    )
    return list(dataset)


def every_packer(seq_len: int) -> dict[str, Packer]:
    """Every packer that runs online, by name, with its variants.

    Args:
        seq_len: tokens per row, a multiple of 12; of the longest one where there are several.
    """
    return {
        **{name: with_rows(kind, seq_len) for name, kind in packer_kinds().items()},
        "BestFitDecreasing, aligned": BestFitDecreasing(seq_len=seq_len, align=4),
        "BestFitDecreasing, dropping": BestFitDecreasing(seq_len=seq_len, extra_capacity=2),
        "BestFitDecreasing, truncating": BestFitDecreasing(seq_len=seq_len, overflow="truncate"),
        "Concat, atoms": Concat(seq_len=seq_len, atom=seq_len // 2),
        "Pad, atoms": Pad(seq_len=seq_len, atom=seq_len // 2),
        "Seamless, repeating": Seamless(seq_len=seq_len, max_repetition=0.5, mask_repeated=True),
        "Buckets": Buckets(seq_lens=(seq_len // 3, seq_len), shares=(1, 2)),
        "Buckets, aligned": Buckets(seq_lens=(seq_len // 3, seq_len), shares=(1, 2), align=4),
        "BestFitCrop, keeping": BestFitCrop(seq_len=seq_len, keep_cropped=True),
    }
