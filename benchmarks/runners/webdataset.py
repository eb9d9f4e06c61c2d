"""webdataset over local tar shards of `.npy` members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.corpus_files import npy_tars
from benchmarks.protocol import Counts, Timed

__all__ = ["WebDatasetDecoded", "WebDatasetRaw"]


class WebDatasetRaw(Timed):
    """Iterating samples as bytes: nothing decoded, nothing packed."""

    label = "webdataset, raw iteration"
    settings = "WebDataset(tars, shardshuffle=False), no decoding, no workers"
    delivers = "the bytes of each member"

    def prepare(self) -> None:
        """Write the shards."""
        self.tars = [str(tar) for tar in sorted(npy_tars(self.workload).glob("*.tar"))]

    def dataset(self) -> Any:
        """A fresh pipeline."""
        import webdataset

        return webdataset.WebDataset(self.tars, shardshuffle=False)

    def batches(self) -> Iterator[Any]:
        """One sample at a time."""
        for sample in self.dataset():
            yield sample["npy"]

    def check(self) -> Counts:
        """Every token once."""
        import io

        tokens = sum(len(np.load(io.BytesIO(data))) for data in self.batches())
        counts = Counts(tokens, tokens, len(self.workload.lengths))
        self.expect_all(counts)
        return counts


class WebDatasetDecoded(WebDatasetRaw):
    """With its decoder: arrays."""

    label = "webdataset, decoded"
    settings = "as raw, with .decode()"
    delivers = "a uint16 array per document"

    def dataset(self) -> Any:
        """A fresh pipeline."""
        return super().dataset().decode()

    def check(self) -> Counts:
        """Every token once."""
        return self.expect_arrays()
