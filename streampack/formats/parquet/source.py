"""Parquet: a text column, or a column with lists of token ids, read by pyarrow.

Listing reads footers only. A shard is then read by row groups, a batch of rows at a time: batches
begin at fixed rows of their row group, a block never crosses a batch, and so a block is a pure
function of the row it starts at. Blocks of ids and masks are views of Arrow's buffers if their type
allows it; texts become Python strings, the only type that tokenizers accept.

Cost: decoding, about 6 ns per id; then per document nothing for ids, one string for texts. Arrow
cannot start in the middle of a row group: the rows before are decoded and dropped. Where a row
group is cut, its column is decoded once more, to find the row at which a part begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack.arguments import explained
from streampack.errors import ConfigError
from streampack.files.record_files import RecordFiles
from streampack.formats.parquet.columns import (
    BlockMaker,
    Rows,
    TextBlocks,
    TokenBlocks,
    is_null,
    kinds_of,
    placed_blocks,
)
from streampack.formats.parquet.footer import (
    DAMAGE,
    DECRYPT,
    ENCRYPTED,
    Footer,
    check_schema,
    read_footer,
)
from streampack.formats.parquet.positions import Offsets, chunks_of, footer_of, open_file
from streampack.sources.arguments import RecordFileOptions
from streampack.sources.base import Block
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.fields import ATTENTION_MASK
from streampack.sources.formats import FORMATS
from streampack.sources.manifest import Manifest
from streampack.sources.records import DamagedFileError
from streampack.storage.failures import is_of_system
from streampack.storage.file_info import FileInfo, Range, shown
from streampack.storage.files import LEAST_BYTES, StoredFile
from streampack.storage.threads import in_threads

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Unpack

    from streampack.formats.parquet.where import Where

#: Called with the first row of a part, the first wanted row and the end.
RowReader = Callable[[int, int, int], Iterator[Rows]]

_FOOTER_THREADS = 64
#: Number of short rows decoded at once: fewer take more time, more take memory.
_BATCH_ROWS = 1024
_BATCH_BYTES = 256 << 10
_PAGE_BYTES = 1 << 20  # usual size of a column's pages


class Parquet(RecordFiles):
    """Documents in a column of Parquet files, cut at any row among any number of lanes.

    Row groups are cut as if their rows were equal. A row group shared by several lanes is decoded
    into the cache, once per host; in small ones, the rows before a part are decoded and dropped.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        text: the column that holds the text (any string type).
        tokens: the column that holds lists of token ids, of any integer type. They become uint16
            where the column of a file is uint8 or uint16, else uint32; an id outside of that
            range breaks its document. If neither is given, the documents are in "text", "txt",
            "tokens" or "input_ids", whichever exists alone with the right type, or else in the
            only column.
        loss_mask: with `tokens`, a column with lists of as many booleans (or 1 and 0), or labels: a
            token's own id where it is learnt, and -100 where not. With several columns, a token is
            learnt if it is learnt in all. None reads "loss_mask", "labels", "assistant_masks" and
            "completion_mask" if they exist; an empty list reads no column.
        where: a condition on columns, as a pyarrow expression or as text, such as
            ``lang == "en" and score >= 0.5``; other rows are left out (docs/sources.md).
        reading: limits of blocks and open shards.
        storage: access to files and their cache.

    Raises:
        ConfigError: the arguments exclude each other.
    """

    endings = FORMATS["Parquet"].endings
    listing = "sampled"

    #: Condition on the rows that are read.
    where: Where | None = None

    @explained
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        where: Any = None,
        **options: Unpack[RecordFileOptions],
    ) -> None:
        super().__init__(paths, **options)
        if where is not None:
            from streampack.formats.parquet.where import Where

            self.where = Where(where)

    def ranges(self, shard: int, low: int, high: int) -> Iterator[Range]:
        """Yield the columns of the part's row groups, each from its beginning."""
        from streampack.formats.parquet.chunks import in_order

        listed = self._listed_shard(shard)
        with self.storage.open(listed) as file:
            chunks = chunks_of(file, self.wanted_columns)  # not by pyarrow
            positions = Offsets.of(chunks.row_groups, int(self.manifest.weights[shard]))
            stop = positions.row(high)
            groups = positions.groups(positions.row(low), stop)
            if self.where is not None:
                groups = self.where.groups(file, groups)
        shares = positions.shares(groups, stop)
        yield from (Range(listed, *part) for part in in_order(chunks, shares))

    def list_shards(self) -> Manifest:
        """List the files, which weigh their stored bytes; read the footers of a sample.

        Other footers are read when their files are opened: a million of them would take most of an
        hour.
        """
        infos = self._files()
        seen = self._sampled(infos)
        footers = in_threads(lambda info: read_footer(self.storage, info), seen, _FOOTER_THREADS)
        any_rows = any(footer.rows > 0 for footer in footers)
        schemas = {
            info.path: footer.schema
            for info, footer in zip(seen, footers, strict=True)
            if footer.schema is not None and (footer.rows > 0 or not any_rows)
        }
        if not schemas:
            raise ConfigError(
                f"{shown(seen[0].path)} cannot be read as Parquet: {footers[0].problem}.",
                f"{DECRYPT}."
                if footers[0].problem == ENCRYPTED
                else "Check the path, and that the files are complete.",
                path=shown(seen[0].path),
            )
        narrow = self._read_schemas(schemas)
        weights, estimate = self._weighed(infos, seen, footers)
        rows = np.array([footer.rows for footer in footers], dtype=np.int64)
        details = {
            "dtype": self._dtype_name(narrow),
            "documents": rows if len(seen) == len(infos) else None,
            "fields": self.fields,
            "encoded_bytes": estimate,
        }
        if self.where is not None:
            details |= self.where.left_out(self, seen, estimate)
        return Manifest.of_files(infos, weights, details)

    def _files(self) -> Sequence[FileInfo]:
        """Return the files to read, sorted by path."""
        return self.storage.list(self.paths, endings=self.endings)

    def _weighed(
        self, infos: Sequence[FileInfo], seen: Sequence[FileInfo], footers: Sequence[Footer]
    ) -> tuple[NDArray[np.int64] | None, int]:
        """Return the weights of the files, (F,), and an estimate of the bytes of all rows."""
        stored = np.array([info.num_bytes for info in infos], dtype=np.int64)
        encoded = sum(footer.num_bytes for footer in footers)
        estimate = encoded * int(stored.sum()) // sum(info.num_bytes for info in seen)
        any_rows = any(footer.rows > 0 for footer in footers)
        return stored * bool(any_rows or len(seen) < len(infos)), estimate

    def describe(self) -> dict[str, Any]:
        """Add the columns that are read; not the paths, so that the files may move."""
        return {
            **({} if self.where is None else {"where": self.where.text}),
            **super().describe(),
            "column": self.column,
            "dtype": self.manifest.details["dtype"],
            "cut": "rows",
            "loss_mask": self.fields.loss_mask,
        }

    def _reader_bytes(self) -> int:
        """Add the bytes that Arrow decodes per open shard: a batch, out of a page of its column."""
        return 2 * super()._reader_bytes() + self.reading.open_shards * 2 * _PAGE_BYTES

    def estimate_tokens(self) -> int:
        """Estimate the number of tokens: 2 bytes per id, 4 per token of text, no other columns.

        Fields with several numbers per token count, because they are most of a file.
        """
        token_bytes = 2 + self.field_types.shaped_bytes if self.tokenized else 4
        return int(self.manifest.details["encoded_bytes"]) // token_bytes

    def _slow_layout(self) -> str:
        from streampack.formats.parquet.layout import slow_row_groups

        return slow_row_groups(self) or super()._slow_layout()

    def document_name(self, origin: np.void) -> str:
        return f"row {int(origin['index'])} of {shown(self.manifest.paths[int(origin['shard'])])}"

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: ErrorPolicy
    ) -> Iterator[tuple[Block, int, int]]:
        """Yield blocks of one file; see `ShardedSource.read_shard`."""
        row = position or 0
        with self.open_shard(shard) as file:
            try:
                with self.open_rows(file, shard) as (schema, positions, batches):
                    if not positions.rows[-1]:  # an empty file may have columns of any type
                        return
                    if beside := self.path_fields(self.manifest.paths[shard], schema.names):
                        schema, batches = beside.schema(schema), beside.reader(batches)
                    batches = self.where.reader(batches) if self.where else batches
                    dtype = self._dtype_of(shard, schema)
                    first_row, stop = positions.row(low), positions.row(high)
                    row = max(first_row, row)
                    blocks = self._block_maker(shard, skips, schema, dtype)
                    decoded = batches(first_row, row, stop)
                    for block, row, place in placed_blocks(
                        decoded, blocks, (low, high), stop, positions.about
                    ):
                        yield block, row, place
            except DAMAGE as error:
                if is_of_system(error):
                    raise
                self._unreadable(shard, row, error)

    def _read_schemas(self, schemas: Mapping[str, pa.Schema]) -> bool:
        """Complete `fields` by the first schema; return True if the ids of all fit into uint16."""
        path, first = next(iter(schemas.items()))
        kinds = kinds_of(first)
        for name in [field.name for field in first if is_null(field.type)]:
            document_kinds = (kinds_of(schema).get(name) for schema in schemas.values())
            kinds[name] = next(filter(None, document_kinds), "")
        self.fields = self.fields.found_in(kinds, shown(path))
        narrow = []
        for path, schema in schemas.items():
            if beside := self.path_fields(path, schema.names):
                schema = beside.schema(schema)
            narrow.append(self._check_schema(path, schema))
        return all(narrow)

    def _dtype_name(self, narrow: bool) -> str:
        """Return the dtype of all documents, "by file" if it depends on the file of a document.

        `narrow` is True if the ids of all files fit into uint16.
        """
        return "by file" if self.fields.tokenized else "text"

    def _check_schema(self, name: str, schema: pa.Schema) -> bool:
        """Raise `ConfigError` for an unfit schema; return True if its ids fit into uint16."""
        if self.where is not None:
            self.where.check(schema, shown(name))
        if self.fields.records is not None:
            from streampack.formats.parquet.rows import check_records

            check_records(self.fields, name, schema)
            return False
        return check_schema(
            name, schema, self.column, self.fields, self.tokenized, self.field_types
        )

    @contextmanager
    def open_rows(
        self, file: StoredFile, shard: int
    ) -> Iterator[tuple[pa.Schema, Offsets, RowReader]]:
        """Open a file's rows: its schema, the positions of its rows, and their reader."""
        footer, positions = footer_of(file, int(self.manifest.weights[shard]))
        listed = self.manifest.details["documents"]
        if listed is not None and footer.num_rows != listed[shard]:
            raise DamagedFileError("its number of rows has changed since it was listed")
        with open_file(file, footer) as data:
            yield data.schema_arrow, positions, partial(self._batches, file, data, positions)

    def _dtype_of(self, shard: int, schema: pa.Schema) -> str:
        """Check the schema of a file, which the listing may not have read; return its dtype."""
        try:
            narrow = self._check_schema("it", schema)
        except ConfigError as error:
            remedy = error.remedy.rstrip(".")
            raise self.broken_shard(shard, error.fact.rstrip("."), remedy=remedy) from error
        dtype: str = self.manifest.details["dtype"]
        if dtype == "uint16" and not narrow:
            raise DamagedFileError("its ids have a wider type than the ids of other files")
        return ("uint16" if narrow else "uint32") if dtype == "by file" else dtype

    def _batches(
        self,
        file: StoredFile,
        opened: pq.ParquetFile,
        positions: Offsets,
        begin: int,
        start: int,
        stop: int,
    ) -> Iterator[Rows]:
        """Yield batches of the rows [start, stop) of a part."""
        columns = self._columns(opened.schema_arrow)
        groups = positions.groups(start, stop)
        if self.where is not None:
            groups = self.where.groups(file, groups)
        for number in groups:
            first, end = int(positions.rows[number]), int(positions.rows[number + 1])
            num_bytes = int(positions.sizes[number])
            size = self._batch_rows(end - first, num_bytes)

            def whole_group(file: StoredFile, number: int = number) -> pq.ParquetFile:
                if not file.mapped:
                    from streampack.formats.parquet.chunks import in_order

                    file.plan(in_order(chunks_of(file, self.wanted_columns), {number: 1.0}))
                return open_file(file, opened.metadata)

            def decode(
                opened: pq.ParquetFile, number: int = number, size: int = size
            ) -> Iterator[pa.RecordBatch]:
                return opened.iter_batches(size, [number], columns, use_threads=False)  # type: ignore[no-any-return]

            inside = begin > first and num_bytes >= LEAST_BYTES
            what = f"row group {number} by {size} {columns}"
            skipped, reached = max(start - first, 0), 0
            batches = _placed(decode(opened))
            if inside:
                from streampack.storage.decoded import shared_batches

                batches = shared_batches(
                    self.storage, file, what, size, skipped, decode, opened, whole_group
                )
            for batch, at in batches:
                low, high = max(start - first - at, 0), min(stop - first - at, batch.num_rows)
                if low < high:
                    yield (
                        batch.slice(low, high - low),
                        np.arange(first + at + low, first + at + high),
                    )
                reached = first + at + batch.num_rows
                if reached >= stop:
                    return
            if reached != end:
                raise DamagedFileError(f"row group {number} is too short")

    @property
    def wanted_columns(self) -> list[str]:
        """Names of the columns that are read from files that have them."""
        types, read = self.field_types, [self.column]
        if (reader := self.fields.records) is not None:
            read = [*reader.columns, *types.token]
        elif self.tokenized:
            read += [*self.fields.loss_masks, *types.token, ATTENTION_MASK]
        read += self.where.names if self.where else ()
        return list(dict.fromkeys([*read, *types.document]))

    def _columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns to read from a file of this schema."""
        if self.fields.by_function:
            return list(schema.names)
        more = self.where.columns_among(schema.names) if self.where else ()
        return [n for n in dict.fromkeys([*self.wanted_columns, *more]) if n in schema.names]

    def _batch_rows(self, rows: int, num_bytes: int) -> int:
        """Return the rows to decode at once: a block, several of short rows, part of a long one."""
        row_bytes = max(num_bytes // max(rows, 1), 1)
        reading = self.reading
        block = max(1, min(reading.documents_per_block, 2 * reading.block_bytes // row_bytes))
        return block * max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes) // block)

    def _block_maker(
        self, shard: int, skips: ErrorPolicy, schema: pa.Schema, dtype: str
    ) -> BlockMaker:
        """Return the maker of blocks from the rows of a file."""
        if self.fields.records is not None:
            from streampack.formats.parquet.rows import record_blocks

            return record_blocks(self, shard, skips, schema)

        def broken(row: int, reason: str) -> None:
            from streampack.sources.broken import broken_document

            skips.handle(broken_document(self, shard, row, reason))

        limits = (self.reading.documents_per_block, self.reading.block_bytes)
        most = self.reading.most_bytes
        columns = set(schema.names)
        types = self.field_types
        document = {name: types.keys.get(name) for name in types.document if name in columns}
        if not self.tokenized:
            return TextBlocks(shard, self.column, limits, most, broken, document)
        token = {name: dtype.shape for name, dtype in types.token.items() if name in columns}
        return TokenBlocks(
            shard,
            self.column,
            self.fields.loss_masks,
            np.dtype(dtype),
            limits,
            most,
            broken,
            token,
            document,
        )

    def _unreadable(self, shard: int, position: int, error: Exception) -> NoReturn:
        what = f"it cannot be read from row {position} on: {str(error).rstrip('.')}"
        wrong = (ENCRYPTED, position, DECRYPT) if "decrypt" in what else (what, position)
        raise self.broken_shard(shard, *wrong) from error


def _placed(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches of a row group, each with the index of its first row."""
    first = 0
    for batch in batches:
        yield batch, first
        first += batch.num_rows
