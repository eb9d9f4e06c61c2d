"""Document fields in the names of folders, as in ``lang=en/year=2024/part.parquet``.

Spark, Hive, DuckDB and pyarrow write such folders, and leave the columns out of the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from streampack.documents.fields import FieldSpec
from streampack.storage.file_info import shown

if TYPE_CHECKING:
    from streampack.formats.parquet.columns import Rows
    from streampack.formats.parquet.source import RowReader

_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class PathFields:
    """Values of document fields that a file's path has and its records lack.

    Attributes:
        values: texts; numbers for fields that are no texts; or None. What is no number stays text.
    """

    values: dict[str, Any]

    @classmethod
    def of(
        cls, path: str, types: FieldSpec, columns: Collection[str], *, everything: bool = False
    ) -> PathFields:
        """Return the fields among `types`, or all, that a path has and `columns` lack."""
        parts = (part.partition("=") for part in shown(path).split("/")[:-1] if "=" in part)
        found = {unquote(name): unquote(value) for name, _, value in parts}
        named = found if everything else types.document
        wanted = [name for name in named if name in found and name not in columns]
        return cls({name: _value(found[name], name in types.keys) for name in wanted})

    def __bool__(self) -> bool:
        return bool(self.values)

    def record(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a record with the values of fields that it lacks."""
        return {**self.values, **record}

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema with a column for each value."""
        for name, value in self.values.items():
            schema = schema.append(pa.field(name, pa.scalar(value).type))
        return schema

    def reader(self, reader: RowReader) -> RowReader:
        """Return a reader of rows that adds a column for each value."""

        def read(*rows: int) -> Iterator[Rows]:
            for batch, numbers in reader(*rows):
                more = [pa.repeat(pa.scalar(v), batch.num_rows) for v in self.values.values()]
                names = [*batch.schema.names, *self.values]
                yield pa.RecordBatch.from_arrays([*batch.columns, *more], names), numbers

        return read


def _value(text: str, is_text: bool) -> Any:
    if text == _NULL:
        return None
    for number in () if is_text else (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
