"""pyarrow reading the row groups of a Parquet file, alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.corpus_files import parquet_ids
from benchmarks.protocol import Counts, Timed

__all__ = ["PyarrowAlone"]


class PyarrowAlone(Timed):
    """`ParquetFile.read_row_group`, one group after the other, without threads.

    Without threads because a row group of one column is one task anyway, and the job beside it
    is a single thread's.
    """

    label = "pyarrow, reading row groups"
    settings = "read_row_group(i, use_threads=False), mapped"
    delivers = "Arrow tables"

    def prepare(self) -> None:
        """Write the file."""
        self.path = parquet_ids(self.workload)

    def batches(self) -> Iterator[Any]:
        """One row group at a time."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path, memory_map=True) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, use_threads=False)

    def check(self) -> Counts:
        """Every token once."""
        import pyarrow.compute as pc

        tokens = checksum = documents = 0
        for table in self.batches():
            ids = pc.list_flatten(table.column("tokens"))
            documents += len(table)
            tokens += len(ids)
            checksum += pc.sum(ids).as_py()
        counts = Counts(tokens, tokens, documents, 0, checksum)
        self.expect_all(counts)
        return counts
