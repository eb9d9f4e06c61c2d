"""mosaicml-streaming's `StreamingDataset` over local MDS shards: documents, not packed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.corpus_files import mds_shards
from benchmarks.protocol import Counts, Timed

__all__ = ["StreamingDatasetIterating", "StreamingDatasetOneCore", "StreamingDatasetReading"]


class StreamingDatasetIterating(Timed):
    """Iterated in this process, without shuffling and without packing."""

    label = "StreamingDataset, iterating"
    settings = (
        "local shards, shuffle=False, batch_size=1, predownload above the number of documents, "
        "no DataLoader workers"
    )
    delivers = "one uint16 array per document, not packed"

    def prepare(self) -> None:
        """Open the shards."""
        from tests.support.mosaic import streaming_module

        # For the rest of the process: importing it plainly needs a working torchvision.
        base = ExitStack().enter_context(streaming_module("base"))
        base.util.clean_stale_shared_memory()
        # Its threads sleep 7 ms whenever they are `predownload` documents ahead, by default 8: at
        # documents that need no download that is thirty times what reading them takes.
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
        tokens = checksum = documents = 0
        for ids in self.batches():
            documents += 1
            tokens += len(ids)
            checksum += int(ids.sum(dtype=np.int64))
        counts = Counts(tokens, tokens, documents, 0, checksum)
        self.expect_all(counts)
        return counts


class StreamingDatasetOneCore(StreamingDatasetIterating):
    """Its reading thread and the loop do not fight over two cores."""

    label = "StreamingDataset, iterating, pinned to one core"
    settings = "as iterating, the process pinned to one core"
    cores = 1


class StreamingDatasetReading(StreamingDatasetIterating):
    """Indexing alone: no thread, no epoch bookkeeping."""

    label = "StreamingDataset, indexing"
    settings = "dataset[i] for ascending i"

    def batches(self) -> Iterator[Any]:
        """One document at a time."""
        for i in range(len(self.dataset)):
            yield self.dataset[i]["tokens"]
