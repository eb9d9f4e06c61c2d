"""A snapshot of a table: its files, and how their columns become the table's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.exclusion.lookup import positions_in
from streampack.file_info import FileInfo
from streampack.predicates.predicate import rows_where
from streampack.sources.records import DamagedFileError

if TYPE_CHECKING:
    from streampack.formats.rows.columns import Rows
    from streampack.predicates.bounds import Bounds

FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a snapshot.

    Attributes:
        info: path or URL, and size.
        constants: values of columns that are equal in all rows and need not be in the file, as
            Python objects of the columns' types.
        deleted: (K,) int64, ascending: indices of rows that are deleted.
        bounds: returns the bounds of a column's values; see `streampack.predicates.bounds`.
        first_row_id: id of the first row, in a table with ids of rows.
    """

    info: FileInfo
    constants: Mapping[str, Any] = field(default_factory=dict)
    deleted: NDArray[np.int64] | None = None
    bounds: Callable[[str], Bounds | None] = lambda name: None
    first_row_id: int | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table, by which the columns of a file are found.

    Attributes:
        schema: the table's columns; the type null stands for types of which only files know.
        ids: id of each column, by which files know it under earlier names; None finds columns by
            name.
        nested: names of fields inside of columns, by their ids.
        names: all names that a column has had, for fetching ahead.
        mapped: ids of columns by name, for files without ids.
        row_ids: column of files with the ids of rows that are not numbered from `first_row_id` on;
            None in tables without ids of rows.
    """

    schema: pa.Schema
    ids: Mapping[str, int] | None = None
    nested: Mapping[int, str] = field(default_factory=dict)
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    mapped: Mapping[str, int] = field(default_factory=dict)
    row_ids: str | None = None

    def of_file(self, physical: pa.Schema) -> dict[str, str]:
        """Return the column of a file, if it has it, for each column of the table.

        Raises:
            DamagedFileError: a column cannot be identified.
        """
        if self.ids is None:
            return {name: name for name in self.schema.names if name in physical.names}
        by_id = {number: name for name, number in _ids(physical, self.mapped).items()}
        columns = {name: by_id[number] for name, number in self.ids.items() if number in by_id}
        for name, column in columns.items():
            self._check_nested(name, physical.field(column).type)
        return columns

    def _check_nested(self, column: str, kind: pa.DataType) -> None:
        """Raise `DamagedFileError` for a field inside of a column that has another name now."""
        for at in range(kind.num_fields):
            inner = kind.field(at)
            number = int((inner.metadata or {}).get(FIELD_ID, -1))
            known = self.nested.get(number, inner.name)
            if pa.types.is_struct(kind) and known != inner.name:
                raise DamagedFileError(
                    f'the field "{inner.name}" of the column "{column}" was renamed to "{known}", '
                    "which is only read of whole columns"
                )
            self._check_nested(column, inner.type)


def _ids(physical: pa.Schema, mapped: Mapping[str, int]) -> dict[str, int]:
    ids = {
        each.name: int(each.metadata[FIELD_ID])
        for each in physical
        if each.metadata and FIELD_ID in each.metadata
    }
    if ids or not len(physical):
        return ids
    if not mapped:
        raise DamagedFileError("its columns have no field ids, and the table has no name mapping")
    return {name: mapped[name] for name in physical.names if name in mapped}


@dataclass(frozen=True, slots=True)
class FileView:
    """Rows of one file as rows of the table.

    Attributes:
        schema: the columns that are read, as the file has them.
        physical: names of columns in the file, by names in the table.
        constants: see `DataFile`.
        deleted: see `DataFile`.
    """

    schema: pa.Schema
    physical: Mapping[str, str]
    constants: Mapping[str, Any]
    deleted: NDArray[np.int64] | None

    @classmethod
    def of(
        cls,
        columns: Columns,
        physical: pa.Schema,
        constants: Mapping[str, Any],
        deleted: NDArray[np.int64] | None,
    ) -> FileView:
        """Return the view of a file with this schema."""
        of_file = columns.of_file(physical)
        constants = {n: v for n, v in constants.items() if n in columns.schema.names}
        fields = []
        for each in columns.schema:
            if each.name in constants:
                fields.append(each)
            elif each.name in of_file:
                fields.append(physical.field(of_file[each.name]).with_name(each.name))
            else:
                fields.append(pa.field(each.name, each.type))
        schema = pa.schema(fields, metadata=physical.metadata)
        present = {n: column for n, column in of_file.items() if n not in constants}
        return cls(schema, present, constants, deleted)

    def rows(
        self, batch: pa.RecordBatch, numbers: NDArray[np.int64], wanted: Collection[str]
    ) -> Rows:
        """Return rows of the file with the table's columns, without deleted rows."""
        batch = self._converted(batch, wanted)
        if self.deleted is not None:
            keep = positions_in(self.deleted, numbers) < 0
            if not keep.all():
                batch, numbers = rows_where(batch, pa.array(keep)), numbers[keep]
        return batch, numbers

    def _converted(self, batch: pa.RecordBatch, wanted: Collection[str]) -> pa.RecordBatch:
        arrays, fields = [], []
        for each in (each for each in self.schema if each.name in wanted):
            column = self.physical.get(each.name)
            if column is None:
                value = pa.scalar(self.constants.get(each.name), each.type)
                arrays.append(pa.repeat(value, batch.num_rows))
            else:
                arrays.append(batch.column(column))
            fields.append(each)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
