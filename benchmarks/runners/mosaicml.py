"""mosaicml-streaming's `StreamingDataset` over local MDS shards: documents, not packed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.corpus_files import mds_shards
from benchmarks.protocol import Counts, Timed

__all__ = ["StreamingDatasetIterating", "StreamingDatasetReading"]


class StreamingDatasetIterating(Timed):
    """Iterated in this process, without shuffling and without packing."""

    label = "StreamingDataset, iterating"
    settings = "shuffle=False, batch_size=1, predownload above the number of documents"
    delivers = "a uint16 array per document"

    def prepare(self) -> None:
        """Open the shards."""
        from tests.support.mosaic import streaming_module

        # For the rest of the process: importing it plainly needs a working torchvision.
        base = ExitStack().enter_context(streaming_module("base"))
        base.util.clean_stale_shared_memory()
        # Its threads sleep 7 ms whenever they are `predownload` documents ahead, by default 8:
        # thirty times as long as reading them takes without a download.
        self.dataset = base.StreamingDataset(
            local=str(mds_shards(self.workload)),
            shuffle=False,
            batch_size=1,
            predownload=len(self.workload.documents) + 1,
        )

    def batches(self) -> Iterator[Any]:
        """One document at a time."""
        for sample in self.dataset:
            yield sample["tokens"]

    def check(self) -> Counts:
        """Every token once."""
        return self.expect_arrays()


class StreamingDatasetReading(StreamingDatasetIterating):
    """Indexing alone: no thread, no epoch bookkeeping."""

    label = "StreamingDataset, indexing"
    settings = "dataset[i] for ascending i"

    def batches(self) -> Iterator[Any]:
        """One document at a time."""
        for i in range(len(self.dataset)):
            yield self.dataset[i]["tokens"]
