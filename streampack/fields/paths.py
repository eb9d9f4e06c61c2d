"""Document fields in the names of folders, as in ``lang=en/year=2024/part.parquet``.

Spark, Hive, DuckDB and pyarrow write such folders, and leave the columns out of the files.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.documents.fields import FieldSpec
from streampack.storage.file_info import shown

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

    def rows(
        self, batch: pa.RecordBatch, numbers: NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Return rows with indices (N,) with a column for each value."""
        more = [pa.repeat(pa.scalar(value), batch.num_rows) for value in self.values.values()]
        names = [*batch.schema.names, *self.values]
        return pa.RecordBatch.from_arrays([*batch.columns, *more], names), numbers


def _value(text: str, is_text: bool) -> Any:
    if text == _NULL:
        return None
    for number in () if is_text else (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
