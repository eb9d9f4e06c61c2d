"""Parquet: a text column, or a column with lists of token ids.

Listing reads footers only. A shard is then read by row groups, a page of rows at a time: pages
begin at fixed rows of their row group, a block never crosses a page, and so a block is a pure
function of the row it starts at. Lists of token ids are decoded here where they are what writers
of ids write (`_token_pages`), else by Arrow, of whose buffers ids and masks are views wherever
their type allows it; texts become Python strings because tokenizers take nothing else.

Cost: decoding; per document nothing for ids, one string for texts. Starting inside a row group
decompresses it from its beginning, and decodes it from there too where Arrow does.
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
from streampack.reading.base import Block
from streampack.reading.manifest import Manifest
from streampack.reading.opening import open_shard
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.sources.parquet.column_chunks import Chunk, DamagedFooterError, column_chunks
from streampack.sources.parquet.columns import (
    BlockMaker,
    Broken,
    TokenBlocks,
    text_blocks,
)
from streampack.sources.parquet.footer import Footer, check_schema, footer_bytes, read_footer
from streampack.sources.parquet.row_pages import row_pages
from streampack.sources.parquet.token_pages import TokenPages
from streampack.storage.remote import shown
from streampack.storage.storage import FileInfo, Storage, in_threads

__all__ = ["Parquet"]

_SUFFIXES = (".parquet", ".parq", ".pq")
_PAGE_BYTES = 16 << 20


#: Files whose footers are read when they are listed. Of more, so many are looked at and the rest
#: when they are opened: a million footers would take one process the better part of an hour.
MOST_FOOTERS = 8192
_FOOTER_THREADS = 64


class Parquet(ShardedSource):
    """Documents in a column of Parquet files, split by rows among any number of lanes.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        text: the column that holds the text (any string type).
        tokens: the column that holds lists of token ids, of any integer type. They become uint16
            where their type, or what the footers of all files say of the largest and smallest,
            fits into it, else uint32; an id outside of it breaks its document. If neither is
            given, the column "text" is read.
        loss_mask: with `tokens`, a column with lists of as many booleans.
        storage: how files are reached and cached.
        open_shards: see `ShardedSource`, as for the rest.
        block_documents: documents per block at most; see `ShardedSource`.
        block_bytes: a block ends as soon as it holds this many bytes of ids or text.
    """

    seekable = True
    splittable = True
    listing_fields: tuple[str, ...] = ("paths", "tokenized", "column", "loss_mask")

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        text: str | None = None,
        tokens: str | None = None,
        loss_mask: str | None = None,
        storage: Storage | None = None,
        open_shards: int = 2,
        block_documents: int | None = None,
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
        the error and the policy for errors decides. More than `MOST_FOOTERS` files are split by
        their bytes: a share of a file's bytes stands for that share of its rows.
        """
        infos = self.storage.list(self.paths, suffixes=_SUFFIXES)
        step = -(-len(infos) // MOST_FOOTERS)
        seen = infos[::step]
        footers = in_threads(self._footer, seen, _FOOTER_THREADS)
        readable = [footer for footer in footers if not footer.problem]
        if not readable:
            raise ConfigError(
                f"{shown(seen[0].path)} is not a Parquet file: {footers[0].problem}.",
                f"None of the {len(seen)} files that were looked at can be read.",
                "Check the path, and that the files are complete.",
            )
        narrow = all(footer.narrow for footer in readable)
        if step == 1:  # what statistics say of some files says nothing of the others
            narrow = all(footer.small for footer in readable)
        sizes = np.array([info.num_bytes for info in infos], dtype=np.int64)
        units = np.maximum(sizes, 1)  # an empty file is to be met, not passed over
        if step == 1:
            rows = [1 if footer.problem else footer.rows for footer in footers]
            units = np.array(rows, dtype=np.int64)
        details = {
            "dtype": ("uint16" if narrow else "uint32") if self.tokenized else "text",
            "values": sum(footer.values for footer in readable) * len(infos) // len(seen),
            "column_bytes": sum(footer.size for footer in readable) * len(infos) // len(seen),
        }
        names = [info.path for info in infos]
        return Manifest(names, units, sizes, "document" if step == 1 else "byte", details)

    def describe(self) -> dict[str, Any]:
        """Adds what is read; where the files lie is left out, so that they may move."""
        return {
            **super().describe(),
            "column": self.column,
            "dtype": self.manifest.details["dtype"],
            "loss_mask": self.loss_mask,
        }

    def reader_bytes(self) -> int:
        """Adds a page per open shard; Arrow decodes as much beside it."""
        page = max(_PAGE_BYTES, 2 * self.block_bytes)
        return super().reader_bytes() + 2 * self.open_shards * page

    def estimate_tokens(self) -> int:
        """From the footers that were read; exact for ids but for nulls if those are all."""
        details = self.manifest.details
        return int(details["values"] if self.tokenized else details["column_bytes"] // 4)

    def document_name(self, origin: np.void) -> str:
        """Words that lead a person to the document."""
        return f"row {int(origin['index'])} of {self.manifest.paths[int(origin['shard'])]}"

    def will_read(self, shards: Sequence[int]) -> None:
        """Fetch remote shards ahead."""
        self.storage.prefetch([self.manifest.paths[shard] for shard in shards])

    def read_shard(
        self, shard: int, start: int, stop: int, skips: Skips
    ) -> Iterator[tuple[Block, int]]:
        """Blocks of one file; see `ShardedSource.read_shard`."""
        position = 0
        with open_shard(self.storage, self.manifest, shard) as path:
            try:
                with pq.ParquetFile(str(path), memory_map=True) as file:
                    places = self._places(file, shard)
                    start, stop = places.row(start), places.row(stop)
                    position = start
                    make = self._block_maker(shard, file.schema_arrow, skips)
                    for page, first in self._pages(file, str(path), start, stop, shard):
                        begin, end = max(start, first), min(stop, first + page.num_rows)
                        rows = page.slice(begin - first, end - begin)
                        for block, consumed in make(rows, begin):
                            position = begin + consumed
                            yield block, places.unit(position)
            except (pa.ArrowException, OSError, DamagedFooterError, UnicodeDecodeError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the disk's failure, not the file's
                self._unreadable(shard, position, error)

    def _footer(self, info: FileInfo) -> Footer:
        return read_footer(self.storage, info, self.column, self._check_schema)

    def _check_schema(self, name: str, schema: pa.Schema) -> bool:
        """Refuse a file of another schema; True if uint16 holds ids of its type."""
        return check_schema(name, schema, self.column, self.loss_mask, self.tokenized)

    def _places(self, file: pq.ParquetFile, shard: int) -> _Places:
        """Where the manifest's units lie in a file, which is held against the listing."""
        rows, units = file.metadata.num_rows, int(self.manifest.units[shard])
        if self.manifest.unit == "document":
            if rows != units:
                self._unreadable(shard, 0, "the number of rows is not what it was when listed")
            return _Places(1, 1)
        if rows > units:
            self._unreadable(shard, 0, f"its {units} bytes hold {rows} rows, fewer than one each")
        try:
            narrow = self._check_schema(shown(self.manifest.paths[shard]), file.schema_arrow)
        except ConfigError as error:
            self._unreadable(shard, 0, error)
        if not narrow and self.manifest.details["dtype"] == "uint16":
            self._unreadable(shard, 0, "its ids are of a wider type than those of other files")
        return _Places(rows, units)

    def _pages(
        self, file: pq.ParquetFile, path: str, start: int, stop: int, shard: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Pages that overlap rows [start, stop), each with the number of its first row.

        They begin and end at fixed rows, but for the first and the last: what is not asked for
        may be missing there.
        """
        columns = self._columns(file.schema_arrow)
        metadata = file.metadata
        chunks = column_chunks(metadata, footer_bytes(path), columns)
        first = 0
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            if first + rows > start and rows > 0:
                size = self._page_rows(chunks[group], rows)
                low, high = max(start - first, 0), min(stop - first, rows)
                if self.tokenized and columns == [self.column] and len(chunks[group]) == 1:
                    (chunk,) = chunks[group]
                    dtype = np.dtype(self.manifest.details["dtype"])
                    lists = TokenPages(file, path, chunk, rows, self.column, dtype)
                    for page, at in lists.batches(size, low, high):
                        yield page, first + at
                        low = at + page.num_rows
                at = 0
                if low < high:
                    for page in row_pages(file, group, size, columns):
                        if at >= high:
                            return
                        if at + page.num_rows > low:
                            yield page, first + at
                        at += page.num_rows
                    if at != rows:
                        what = f"row group {group} is too short"
                        self._unreadable(shard, max(first + at, start), what)
            first += rows
            if first >= stop:
                return

    def _columns(self, schema: pa.Schema) -> list[str]:
        """The columns that are read from a file of this schema."""
        return [name for name in (self.column, self.loss_mask) if name]

    def _page_rows(self, chunks: list[Chunk], rows: int) -> int:
        """Rows per page of a row group: about `_PAGE_BYTES`, in whole blocks if they are small."""
        per_row = max(1, sum(max(chunk.uncompressed_bytes, 0) for chunk in chunks) // rows)
        size = max(1, min(max(_PAGE_BYTES, 2 * self.block_bytes) // per_row, 1 << 16))
        return size - size % self.block_documents if size > self.block_documents else size

    def _block_maker(self, shard: int, schema: pa.Schema, skips: Skips) -> BlockMaker:
        """What turns rows into blocks, for this file's types."""

        broken = self._broken(shard, skips)
        limits = (self.block_documents, self.block_bytes)
        if self.tokenized:
            dtype = np.dtype(self.manifest.details["dtype"])
            return TokenBlocks(shard, self.column, self.loss_mask, dtype, limits, broken)

        def texts(rows: pa.RecordBatch, first: int) -> Iterator[tuple[Block, int]]:
            column = rows.column(self.column)
            for values, kept, consumed in text_blocks(column, first, limits, broken):
                yield Texts(values, make_origin(shard, kept)), consumed

        return texts

    def _broken(self, shard: int, skips: Skips) -> Broken:
        """What is told of rows of this file that are no documents."""

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

        return broken

    def _unreadable(self, shard: int, position: int, error: object) -> NoReturn:
        raise ContentError(
            f"{shown(self.manifest.paths[shard])} cannot be read from row {position} on: "
            f"{str(error).rstrip('.')}.",
            "The rest of the file is lost.",
            'Write the file again, or step over it with on_error="skip".',
            shard=shard,
            index=position,
            rest_of_shard=True,
        ) from (error if isinstance(error, Exception) else None)


@dataclass(frozen=True, slots=True)
class _Places:
    """Rows of a file and the units they are counted in: equal shares, in the same order.

    Every row has a unit of its own, so that the row a unit lies in gives the unit back.
    """

    rows: int
    units: int

    def row(self, unit: int) -> int:
        """The row that a unit lies in."""
        return unit * self.rows // max(self.units, 1)

    def unit(self, row: int) -> int:
        """The first unit that lies in a row."""
        return -(-row * self.units // max(self.rows, 1))
