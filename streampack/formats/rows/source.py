"""Files of rows with columns as sources: their schemas, the columns that are read, and blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from streampack.arguments import explained
from streampack.errors import ConfigError
from streampack.file_info import shown
from streampack.files.file_source import ShardBlock
from streampack.files.record_files import RecordFiles
from streampack.formats.rows.columns import (
    BlockMaker,
    Rows,
    TextBlocks,
    TokenBlocks,
    is_null,
    kinds_of,
)
from streampack.formats.rows.schemas import DAMAGE, DECRYPT, ENCRYPTED, check_schema
from streampack.sources.arguments import RecordFileOptions
from streampack.sources.fields import ATTENTION_MASK
from streampack.sources.records import DamagedFileError
from streampack.storage.files import StoredFile, is_of_system

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Unpack

_PAGE_BYTES = 1 << 20  # usual size of a column's pages


class OpenRows(NamedTuple):
    """The rows of an open file.

    Attributes:
        schema: the columns.
        has_rows: True if there are any.
        row: returns the first row that begins at a position of the weight or after it.
        reached: called with a row and the end of a part; returns the row's position on the weight,
            the end of the part if the part ends before it.
        read: called with the first row of a part, the first wanted row and the end of the part on
            the weight; yields the wanted rows.
    """

    schema: pa.Schema
    has_rows: bool
    row: Callable[[int], int]
    reached: Callable[[int, int], int]
    read: Callable[[int, int, int], Iterator[Rows]]


class RowFiles(RecordFiles):
    """Documents in a column of files of rows, cut at any row among any number of lanes.

    Subclasses implement `list_shards`, with `_read_schemas`, and `open_rows`.

    Args:
        where: a condition on columns, as a pyarrow expression or as text.
        paths, options: see `RecordFiles`.
    """

    listing = "sampled"

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
            from streampack.predicates import Predicate

            self.where = Predicate(where)

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

    def document_name(self, origin: np.void) -> str:
        return f"row {int(origin['index'])} of {shown(self.manifest.paths[int(origin['shard'])])}"

    def open_rows(self, file: StoredFile, shard: int) -> AbstractContextManager[OpenRows]:
        """Open a file's rows inside the context; raise one of `DAMAGE` if it is damaged."""
        raise NotImplementedError

    def blocks(self, shard: int, low: int, high: int, position: int | None) -> Iterator[ShardBlock]:
        row = position or 0
        try:
            with self.open_shard(shard) as file, self.open_rows(file, shard) as opened:
                schema, first = opened.schema, opened.row(low)
                if not opened.has_rows:  # an empty file may have columns of any type
                    return
                beside = self.path_fields(self.manifest.paths[shard], schema.names)
                schema = beside.schema(schema) if beside else schema
                make = self._block_maker(shard, schema, self._dtype_of(shard, schema))
                row = max(first, row)
                for rows in opened.read(first, row, high):
                    rows = beside.rows(*rows) if beside else rows
                    rows = self.where.rows(*rows) if self.where else rows
                    for block in make(*rows) if len(rows[1]) else ():
                        row = block.end
                        yield block._replace(reached=opened.reached(row, high))
        except DAMAGE as error:
            if is_of_system(error):
                raise
            fault = f"it cannot be read from row {row} on: {error}"
            wrong = (ENCRYPTED, row, DECRYPT) if "decrypt" in fault else (fault, row)
            raise self.broken_shard(shard, *wrong) from error

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
            from streampack.formats.rows.records import check_records

            check_records(self.fields, name, schema)
            return False
        return check_schema(
            name, schema, self.column, self.fields, self.tokenized, self.field_types
        )

    def _dtype_of(self, shard: int, schema: pa.Schema) -> str:
        """Check the schema of a file, which the listing may not have read; return its dtype."""
        try:
            narrow = self._check_schema("it", schema)
        except ConfigError as error:
            raise self.broken_shard(shard, error.fact, remedy=error.remedy) from error
        dtype: str = self.manifest.details["dtype"]
        if dtype == "uint16" and not narrow:
            raise DamagedFileError("its ids have a wider type than the ids of other files")
        return ("uint16" if narrow else "uint32") if dtype == "by file" else dtype

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

    def _block_maker(self, shard: int, schema: pa.Schema, dtype: str) -> BlockMaker:
        """Return the maker of blocks from the rows of a file."""
        if self.fields.records is not None:
            from streampack.formats.rows.records import record_blocks

            return record_blocks(self, shard, schema)
        limits = (self.reading.documents_per_block, self.reading.block_bytes)
        most, types, columns = self.reading.most_bytes, self.field_types, set(schema.names)
        document = {name: types.keys.get(name) for name in types.document if name in columns}
        if not self.tokenized:
            return TextBlocks(shard, self.column, limits, most, document)
        token = {name: dtype.shape for name, dtype in types.token.items() if name in columns}
        masks, ids = self.fields.loss_masks, np.dtype(dtype)
        return TokenBlocks(shard, self.column, masks, ids, limits, most, token, document)
