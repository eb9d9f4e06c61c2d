"""Multi-Bucket: documents by length class, each class concatenated and cut.

Steps:
  1. A document goes to the smallest bucket that holds it, or to the largest if none does.
  2. The documents of a bucket are joined in order of arrival and cut at its length.
  3. The seed orders the full rows of each bucket; rows of the shortest bucket come first.

Cost: O(documents + rows). Keeps every token; cuts documents wherever a row ends.

Source: the baseline of "Bucket Pre-training is All You Need" (2024).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import offsets_of
from streampack.packers.concat import cut_joined
from streampack.packing import Plan
from streampack.packing.rng import derive_seed, permutation

__all__ = ["plan_multi_bucket"]


def plan_multi_bucket(
    lengths: NDArray[np.int64], seq_lens: Sequence[int], *, seed: int = 0
) -> Plan:
    """The rows of a whole corpus of documents of these lengths (N,).

    Args:
        lengths: int64, tokens per document, in order of arrival.
        seq_lens: the buckets, tokens per row, ascending.
        seed: orders the full rows of each bucket.
    """
    sizes = np.array(seq_lens, dtype=np.int64)
    bucket = np.minimum(np.searchsorted(sizes, lengths), len(sizes) - 1)
    parts = []
    for b, size in enumerate(seq_lens):
        own = np.where(bucket == b, lengths, 0)
        order = permutation(int(own.sum()) // size, derive_seed(seed, b))
        parts.append(cut_joined(own, size, size, order))
    counts = np.concatenate([np.diff(part[0]) for part in parts])
    document, start, stop = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
    segments = len(document)
    return Plan(
        row_offsets=offsets_of(counts),
        seq_len=np.repeat(sizes, [len(part[0]) - 1 for part in parts]).astype(np.int32),
        document=document,
        start=start,
        stop=stop,
        overlap=np.zeros(segments, dtype=np.int64),
        insert_eos=np.zeros(segments, dtype=np.bool_),
        pad_after=np.zeros(segments, dtype=np.int64),
        dropped=np.zeros(len(lengths), dtype=np.int64),
    )
