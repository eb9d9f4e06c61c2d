"""TRL's `pack_dataset`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.protocol import SEQ_LEN, Counts, Timed

__all__ = ["TRLPackDataset"]


class TRLPackDataset(Timed):
    """Best-fit decreasing over an Arrow-backed datasets.Dataset.

    "bfd_split" keeps every token. `keep_in_memory` spares the cache file, and 10,000 documents per
    call of the packing function were the fastest of 1,000, 10,000 and all. The time ends at the
    packed Arrow table; its collator, which makes tensors by way of Python lists, does not count.
    """

    label = "TRL, pack_dataset bfd_split"
    environment = "trl"
    settings = "keep_in_memory=True, batch_size=10,000"
    delivers = "an Arrow table: 4 bytes per token"

    def prepare(self) -> None:
        """The documents as an Arrow table."""
        import datasets
        import pyarrow as pa

        datasets.disable_progress_bars()
        datasets.disable_caching()
        ids = pa.array(self.workload.tokens.astype("int32"))
        column = pa.ListArray.from_arrays(pa.array(self.workload.offsets, type=pa.int32()), ids)
        self.dataset = datasets.Dataset(pa.table({"input_ids": column}))

    def batches(self) -> Iterator[Any]:
        """The packed dataset, whole."""
        from trl import pack_dataset

        yield pack_dataset(
            self.dataset,
            SEQ_LEN,
            "bfd_split",
            map_kwargs={"keep_in_memory": True, "batch_size": 10_000},
        )

    def check(self) -> Counts:
        """Every token once."""
        import pyarrow.compute as pc

        (packed,) = self.batches()
        column = packed.data.column("input_ids")
        ids = pc.list_flatten(column)
        lengths = self.workload.lengths
        cut = int((lengths > SEQ_LEN).sum())
        checksum = pc.sum(ids).as_py()
        counts = Counts(len(column) * SEQ_LEN, len(ids), len(lengths), cut, checksum)
        self.expect_all(counts)
        return counts
