"""Parquet: a text column, or a column with lists of token ids, read by pyarrow.

Listing reads footers only. A shard is then read by row groups, a batch of rows at a time: batches
begin at fixed rows of their row group, a block never crosses a batch, and so a block is a pure
function of the row it starts at. Blocks of ids and masks are views of Arrow's buffers if their type
allows it; texts become Python strings, because tokenizers accept nothing else.

Cost: decoding, about 6 ns per id; then per document nothing for ids, one string for texts. Arrow
cannot start in the middle of a row group: the rows before are decoded and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streampack.errors import ConfigError
from streampack.reading.base import Block
from streampack.reading.fields import Fields
from streampack.reading.manifest import Manifest
from streampack.reading.options import Reading
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.sources.parquet.columns import BlockMaker, Broken, TextBlocks, TokenBlocks
from streampack.sources.parquet.footer import (
    DAMAGE,
    DamagedFileError,
    Footer,
    check_schema,
    read_footer,
    row_groups,
)
from streampack.storage.remote import shown
from streampack.storage.storage import FileInfo, Storage, in_threads

__all__ = ["Parquet"]

_FOOTER_THREADS = 64
#: Short rows are decoded so many at once: fewer take more time, more take memory.
_BATCH_ROWS = 1024
_BATCH_BYTES = 256 << 10
_PAGE_BYTES = 1 << 20  # of a column, as writers cut it by default

#: Files whose footers are read when they are listed. If there are more, the footers of so many are
#: read, and the others when their files are opened: a million would take most of an hour.
MOST_FOOTERS = 8192


class Parquet(ShardedSource):
    """Documents in a column of Parquet files, split by rows among any number of lanes.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        text: the column that holds the text (any string type).
        tokens: the column that holds lists of token ids, of any integer type. They become uint16
            where the column is uint8 or uint16 in all files, else uint32; an id outside of it
            breaks its document. If neither is given, the column "text" is read.
        loss_mask: with `tokens`, a column with lists of as many booleans.
        reading: how a lane reads the files.
        storage: how files are reached and cached.

    Raises:
        ConfigError: arguments that do not go together.
    """

    seekable = True
    splittable = True
    endings = (".parquet", ".parq", ".pq")
    listing_fields: tuple[str, ...] = ("paths", "tokenized", "column", "loss_mask")

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        text: str | None = None,
        tokens: str | None = None,
        loss_mask: str | None = None,
        reading: Reading | None = None,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(reading=reading, storage=storage)
        fields = Fields.named(text=text, tokens=tokens, loss_mask=loss_mask, default="text")
        self.paths = paths
        self.tokenized = fields.tokenized
        self.column = fields.document or "text"
        self.loss_mask = fields.loss_mask

    def list_shards(self) -> Manifest:
        """The files with their rows, from their footers, which are read in parallel.

        A file whose footer is broken counts as one row, so that the lane that reads it gets the
        error, and `on_error` decides. More than `MOST_FOOTERS` files are split by their bytes: a
        share of a file's bytes stands for that share of its rows.
        """
        infos = self.storage.list(self.paths, endings=self.endings)
        step = -(-len(infos) // MOST_FOOTERS)
        seen = infos[::step]
        footers = in_threads(self._footer, seen, _FOOTER_THREADS)
        readable = [footer for footer in footers if not footer.problem]
        if not readable:
            raise ConfigError(
                f"{shown(seen[0].path)} is not a Parquet file: {footers[0].problem}.",
                f"None of the {len(seen)} files that were checked can be read.",
                "Check the path, and that the files are complete.",
            )
        narrow = all(footer.narrow for footer in readable)
        sizes = np.array([info.num_bytes for info in infos], dtype=np.int64)
        units = np.maximum(sizes, 1)  # an empty file is an error, so it must be read
        if step == 1:
            rows = [1 if footer.problem else footer.rows for footer in footers]
            units = np.array(rows, dtype=np.int64)
        details = {
            "dtype": ("uint16" if narrow else "uint32") if self.tokenized else "text",
            "encoded_bytes": sum(footer.num_bytes for footer in readable) * len(infos) // len(seen),
        }
        names = [info.path for info in infos]
        return Manifest(names, units, sizes, "document" if step == 1 else "byte", details)

    def describe(self) -> dict[str, Any]:
        """Adds what is read; not the paths, so that the files may move."""
        return {
            **super().describe(),
            "column": self.column,
            "dtype": self.manifest.details["dtype"],
            "loss_mask": self.loss_mask,
        }

    def reader_bytes(self) -> int:
        """Adds what Arrow decodes per open shard: a batch, out of a page of its column."""
        return 2 * super().reader_bytes() + self.reading.open_shards * 2 * _PAGE_BYTES

    def estimate_tokens(self) -> int:
        """A rough number of tokens: 2 bytes per id, 4 per token of text, no other columns."""
        return int(self.manifest.details["encoded_bytes"]) // (2 if self.tokenized else 4)

    def document_name(self, origin: np.void) -> str:
        return f"row {int(origin['index'])} of {shown(self.manifest.paths[int(origin['shard'])])}"

    def read_shard(
        self, shard: int, start: int, stop: int, skips: Skips
    ) -> Iterator[tuple[Block, int]]:
        """Blocks of one file; see `ShardedSource.read_shard`."""
        row = 0
        with self.open_shard(shard) as path:
            try:
                with pq.ParquetFile(str(path), memory_map=True) as file:
                    places = self._places(file, shard)
                    row, stop = places.row(start), places.row(stop)
                    blocks = self._block_maker(shard, skips)
                    for batch, first in self._batches(file, row, stop):
                        for block, consumed in blocks(batch, first):
                            row = first + consumed
                            yield block, places.unit(row)
            except DAMAGE as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the disk failed, not the file
                self._unreadable(shard, row, error)

    def _footer(self, info: FileInfo) -> Footer:
        return read_footer(self.storage, info, self._check_schema)

    def _check_schema(self, name: str, schema: pa.Schema) -> bool:
        """Raise `ConfigError` for a file of another schema; True if its ids fit into uint16."""
        return check_schema(name, schema, self.column, self.loss_mask, self.tokenized)

    def _places(self, file: pq.ParquetFile, shard: int) -> _Places:
        """How rows and units of a file correspond, after the file is compared with the listing."""
        rows, units = file.metadata.num_rows, int(self.manifest.units[shard])
        documents = self.manifest.unit == "document"
        if documents and rows != units:
            self._unreadable(shard, 0, "the number of rows is not what it was when listed")
        if rows > units:
            self._unreadable(shard, 0, f"its {units} bytes cannot hold {rows} rows")
        try:
            narrow = self._check_schema(shown(self.manifest.paths[shard]), file.schema_arrow)
        except ConfigError as error:
            self._unreadable(shard, 0, error)
        if not narrow and self.manifest.details["dtype"] == "uint16":
            self._unreadable(shard, 0, "its ids are of a wider type than those of other files")
        return _Places(1, 1) if documents else _Places(rows, units)

    def _batches(
        self, file: pq.ParquetFile, start: int, stop: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Batches of the rows [start, stop), each with the number of its first row."""
        columns = self._columns(file.schema_arrow)
        first = 0
        for number, group in enumerate(row_groups(file.metadata)):
            end = first + group.num_rows
            if first < stop and end > start:
                size = self._batch_rows(group)
                for batch in file.iter_batches(size, [number], columns, use_threads=False):
                    low, high = max(start - first, 0), min(stop - first, batch.num_rows)
                    if low < high:
                        yield batch.slice(low, high - low), first + low
                    first += batch.num_rows
                    if first >= stop:
                        return
                if first != end:
                    raise DamagedFileError(f"row group {number} is too short")
            first = end

    def _columns(self, schema: pa.Schema) -> list[str]:
        """The columns that are read from a file of this schema."""
        return [name for name in (self.column, self.loss_mask) if name]

    def _batch_rows(self, group: pq.RowGroupMetaData) -> int:
        """Rows to decode at once: a block, or several of short rows, or a part of long ones."""
        row_bytes: int = max(group.total_byte_size // max(group.num_rows, 1), 1)
        reading = self.reading
        block = max(1, min(reading.documents_per_block, 2 * reading.block_bytes // row_bytes))
        return block * max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes) // block)

    def _block_maker(self, shard: int, skips: Skips) -> BlockMaker:
        """What makes blocks of the rows of a file."""
        broken = self._broken(shard, skips)
        limits = (self.reading.documents_per_block, self.reading.block_bytes)
        if not self.tokenized:
            return TextBlocks(shard, self.column, limits, broken)
        dtype = np.dtype(self.manifest.details["dtype"])
        return TokenBlocks(shard, self.column, self.loss_mask, dtype, limits, broken)

    def _broken(self, shard: int, skips: Skips) -> Broken:
        """A function that reports rows of this file that are no documents."""

        def broken(row: int, reason: str) -> None:
            skips.handle(self.broken_document(shard, row, reason))

        return broken

    def _unreadable(self, shard: int, position: int, error: object) -> NoReturn:
        what = f"it cannot be read from row {position} on: {str(error).rstrip('.')}"
        cause = error if isinstance(error, Exception) else None
        raise self.broken_shard(shard, what, position) from cause


@dataclass(frozen=True, slots=True)
class _Places:
    """Rows of a file, and the units that it is split by: equal shares, in the same order.

    There are at least as many units as rows, so no two rows share a unit.
    """

    rows: int
    units: int

    def row(self, unit: int) -> int:
        """The row that a unit belongs to."""
        return unit * self.rows // max(self.units, 1)

    def unit(self, row: int) -> int:
        """The first unit of a row."""
        return -(-row * self.units // max(self.rows, 1))
