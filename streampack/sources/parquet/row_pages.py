"""Row groups of a Parquet file as Arrow decodes them, in pages that begin at fixed rows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["row_pages"]


def row_pages(
    file: pq.ParquetFile, group: int, size: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a row group in pages of exactly `size`, the last one excepted.

    Arrow may hand out fewer rows at a time than it was asked for; where pages begin must not
    depend on that.
    """
    held: list[pa.RecordBatch] = []
    rows = 0
    batches = file.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)
    for batch in batches:
        while batch.num_rows:
            piece = batch.slice(0, size - rows)
            batch = batch.slice(piece.num_rows)
            held.append(piece)
            rows += piece.num_rows
            if rows == size:
                yield _joined(held)
                held, rows = [], 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
