"""Parquet: a text column, or a column with lists of token ids.

Listing reads footers only. A shard is then read by row groups, a page of rows at a time: pages
begin at fixed rows of their row group, a block never crosses a page, and so a block is a pure
function of the row it starts at. Token ids and masks are views of Arrow's buffers wherever their
type allows it; texts become Python strings because tokenizers take nothing else.

Cost: Arrow's decoding; per document nothing for ids, one string for texts. Starting inside a row
group decodes that row group from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streampack.documents import Texts, make_origin
from streampack.errors import ConfigError, ContentError
from streampack.sources.arrow import BlockMaker, TokenBlocks, is_text, is_token_list, text_blocks
from streampack.sources.base import Block
from streampack.sources.manifest import Manifest
from streampack.sources.opening import open_shard
from streampack.sources.remote import shown
from streampack.sources.sharded import ShardedSource
from streampack.sources.skips import Skips
from streampack.sources.storage import FileInfo, Storage, in_threads

__all__ = ["Parquet"]

_SUFFIXES = (".parquet", ".parq", ".pq")
_FIRST_READ = 64 << 10
_LARGEST_FOOTER = 1 << 30
_PAGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Footer:
    """What the listing keeps of a file; `problem` says why there is nothing to keep."""

    rows: int = 0
    schema: pa.Schema | None = None
    columns: dict[str, tuple[int, int]] | None = None  # name -> (values, bytes)
    problem: str = ""


class Parquet(ShardedSource):
    """Documents in a column of Parquet files, split by rows among any number of lanes.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        text: the column that holds the text (any string type).
        tokens: the column that holds lists of token ids, of any integer type. uint16 and smaller
            stay uint16, anything else becomes uint32; an id outside of it breaks its document.
            If neither is given, the column "text" is read.
        loss_mask: with `tokens`, a column with lists of as many booleans.
        storage: how files are reached and cached.
        open_shards: see `ShardedSource`, as for the rest.
        block_documents: documents per block at most.
        block_bytes: a block ends as soon as it holds this many bytes of ids or text.
    """

    seekable = True
    splittable = True

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        text: str | None = None,
        tokens: str | None = None,
        loss_mask: str | None = None,
        storage: Storage | None = None,
        open_shards: int = 2,
        block_documents: int = 256,
        block_bytes: int = 4 << 20,
    ) -> None:
        super().__init__(
            open_shards=open_shards, block_documents=block_documents, block_bytes=block_bytes
        )
        if text is not None and tokens is not None:
            raise ConfigError(
                f'Both text="{text}" and tokens="{tokens}" are given.',
                "A document is read from one column.",
                "Pass the one to read.",
            )
        if loss_mask is not None and tokens is None:
            raise ConfigError(
                f'loss_mask="{loss_mask}" is given without tokens.',
                "A mask counts token ids, which a text does not have yet.",
                "Pass tokens=, or leave the mask out.",
            )
        self.paths = paths
        self.tokenized = tokens is not None
        self.column = tokens if tokens is not None else text if text is not None else "text"
        self.loss_mask = loss_mask
        self.storage = storage or Storage()

    def list_shards(self) -> Manifest:
        """The files with their rows, from their footers, which are read in parallel.

        A file whose footer is broken counts as one row, so that whoever comes to read it meets
        the error and the policy for errors decides.
        """
        infos = self.storage.list(self.paths, suffixes=_SUFFIXES)
        footers = in_threads(self._footer, infos)
        names = [info.path for info in infos]
        readable = [(n, f) for n, f in zip(names, footers, strict=True) if f.schema is not None]
        if not readable:
            raise ConfigError(
                f"{shown(names[0])} is not a Parquet file: {footers[0].problem}.",
                f"None of the {len(names)} files that were found can be read.",
                "Check the path, and that the files are complete.",
            )
        narrow = True
        totals = [0, 0]
        for name, footer in readable:
            narrow &= self._check_schema(name, footer)
            values, size = (footer.columns or {}).get(self.column, (0, 0))
            totals = [totals[0] + values, totals[1] + size]
        rows = [1 if footer.problem else footer.rows for footer in footers]
        details = {
            "dtype": ("uint16" if narrow else "uint32") if self.tokenized else "text",
            "values": totals[0],
            "column_bytes": totals[1],
        }
        return Manifest(
            tuple(names),
            np.array(rows, dtype=np.int64),
            np.array([info.num_bytes for info in infos], dtype=np.int64),
            "document",
            details,
        )

    def describe(self) -> dict[str, Any]:
        """Adds what is read; where the files lie is left out, so that they may move."""
        return {
            **super().describe(),
            "column": self.column,
            "dtype": self.manifest.details["dtype"],
            "loss_mask": self.loss_mask,
        }

    def estimate_tokens(self) -> int:
        """From the footers: exact for ids but for nulls, bytes of text over four otherwise."""
        details = self.manifest.details
        return int(details["values"] if self.tokenized else details["column_bytes"] // 4)

    def will_read(self, shards: Sequence[int]) -> None:
        """Fetch remote shards ahead."""
        self.storage.prefetch([self.manifest.paths[shard] for shard in shards])

    def read_shard(
        self, shard: int, start: int, stop: int, skips: Skips
    ) -> Iterator[tuple[Block, int]]:
        """Blocks of one file; see `ShardedSource.read_shard`."""
        position = start
        with open_shard(self.storage, self.manifest, shard) as path:
            try:
                with pq.ParquetFile(str(path), memory_map=True) as file:
                    make = self._block_maker(shard, file.schema_arrow, skips)
                    for page, first in self._pages(file, shard, start, stop):
                        begin, end = max(start, first), min(stop, first + page.num_rows)
                        rows = page.slice(begin - first, end - begin)
                        for block, consumed in make(rows, begin):
                            yield block, begin + consumed
                            position = begin + consumed
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the disk's failure, not the file's
                self._unreadable(shard, position, error)

    def _pages(
        self, file: pq.ParquetFile, shard: int, start: int, stop: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Pages that overlap rows [start, stop), each with the number of its first row."""
        columns = [name for name in (self.column, self.loss_mask) if name]
        metadata = file.metadata
        if metadata.num_rows != self.manifest.units[shard]:
            self._unreadable(shard, start, "the number of rows is not what it was when listed")
        first = 0
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            if first + rows > start and rows > 0:
                size = self._page_rows(metadata, group, columns)
                at = first
                for page in _batches(file, group, size, columns):
                    if at >= stop:
                        return
                    if at + page.num_rows > start:
                        yield page, at
                    at += page.num_rows
                if at != first + rows:
                    self._unreadable(shard, max(at, start), f"row group {group} is too short")
            first += rows
            if first >= stop:
                return

    def _page_rows(self, metadata: pq.FileMetaData, group: int, columns: list[str]) -> int:
        """Rows per page: about `_PAGE_BYTES`, in whole blocks if they are small enough."""
        row_group = metadata.row_group(group)
        size: int = 0
        for i in range(row_group.num_columns):
            chunk = row_group.column(i)
            if chunk.path_in_schema.split(".")[0] in columns:
                size += chunk.total_uncompressed_size
        per_row = max(1, size // max(1, int(row_group.num_rows)))
        rows = max(1, min(max(_PAGE_BYTES, 2 * self.block_bytes) // per_row, 1 << 16))
        return rows - rows % self.block_documents if rows > self.block_documents else rows

    def _block_maker(self, shard: int, schema: pa.Schema, skips: Skips) -> BlockMaker:
        """What turns rows into blocks, for this file's types."""

        def broken(row: int, reason: str) -> None:
            skips.handle(
                ContentError(
                    f"In {shown(self.manifest.paths[shard])}, row {row} {reason}.",
                    "It is not a document.",
                    'Repair the file, or step over such rows with on_error="skip".',
                    shard=shard,
                    index=row,
                )
            )

        limits = (self.block_documents, self.block_bytes)
        if self.tokenized:
            dtype = np.dtype(self.manifest.details["dtype"])
            return TokenBlocks(shard, self.column, self.loss_mask, dtype, limits, broken)

        def texts(rows: pa.RecordBatch, first: int) -> Iterator[tuple[Block, int]]:
            column = rows.column(self.column)
            for values, kept, consumed in text_blocks(column, first, limits, broken):
                yield Texts(values, make_origin(shard, kept)), consumed

        return texts

    def _unreadable(self, shard: int, position: int, error: object) -> NoReturn:
        raise ContentError(
            f"{shown(self.manifest.paths[shard])} cannot be read from row {position} on: {error}.",
            "The rest of the file is lost.",
            'Write the file again, or step over it with on_error="skip".',
            shard=shard,
            index=position,
            rest_of_shard=True,
        ) from (error if isinstance(error, Exception) else None)

    def _check_schema(self, name: str, footer: _Footer) -> bool:
        """Refuse a file that lacks a column or has it in another type; True if uint16 holds it."""
        schema = footer.schema
        assert schema is not None
        there = ", ".join(f'"{field.name}" ({field.type})' for field in schema)
        for column in (self.column, self.loss_mask):
            if column is not None and schema.get_field_index(column) < 0:
                raise ConfigError(
                    f'{shown(name)} has no column "{column}", or has it more than once.',
                    f"Its columns are {there}.",
                    "Pass the right one as text= (strings) or tokens= (lists of token ids).",
                )
        kind = schema.field(self.column).type
        if not (is_token_list(kind) if self.tokenized else is_text(kind)):
            wanted = "lists of integers" if self.tokenized else "strings"
            raise ConfigError(
                f'The column "{self.column}" of {shown(name)} is {kind}.',
                f"It should hold {wanted}.",
                f"Pass text= for strings and tokens= for token ids. The columns are {there}.",
            )
        if self.loss_mask is not None:
            mask = schema.field(self.loss_mask).type
            if not is_token_list(mask) and not (
                hasattr(mask, "value_type") and pa.types.is_boolean(mask.value_type)
            ):
                raise ConfigError(
                    f'The column "{self.loss_mask}" of {shown(name)} is {mask}.',
                    "A loss mask is a list of booleans per document.",
                    f"Pass the right column. The columns are {there}.",
                )
        return self.tokenized and kind.value_type in (pa.uint8(), pa.uint16())

    def _footer(self, info: FileInfo) -> _Footer:
        """Read a footer by ranges; a wrong one is described, not raised."""
        size = info.num_bytes
        if size < 12:
            return _Footer(problem=f"it has only {size} bytes")
        tail = self.storage.read_range(info.path, max(0, size - _FIRST_READ), size)
        if tail[-4:] != b"PAR1":
            return _Footer(problem="it does not end in a Parquet footer")
        length = int.from_bytes(tail[-8:-4], "little")
        if length > min(size - 12, _LARGEST_FOOTER):
            return _Footer(problem=f"its footer would have {length} of its {size} bytes")
        if length + 8 > len(tail):
            tail = self.storage.read_range(info.path, size - length - 8, size)
        try:
            metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + tail[-length - 8 :]))
            schema = metadata.schema.to_arrow_schema()
        except (pa.ArrowException, OSError) as error:
            return _Footer(problem=f"its footer is broken ({error})")
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        if any(g.num_rows < 0 for g in groups) or sum(g.num_rows for g in groups) != (
            metadata.num_rows
        ):
            return _Footer(problem="its row groups do not add up to its rows")
        columns: dict[str, tuple[int, int]] = {}
        for group in groups:
            for i in range(group.num_columns):
                chunk = group.column(i)
                if not 0 <= chunk.total_compressed_size <= size:
                    return _Footer(problem=f"column {chunk.path_in_schema} is larger than the file")
                name = chunk.path_in_schema.split(".")[0]
                values, stored = columns.get(name, (0, 0))
                columns[name] = values + chunk.num_values, stored + chunk.total_uncompressed_size
        return _Footer(metadata.num_rows, schema, columns)


def _batches(
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
