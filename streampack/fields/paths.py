"""Document fields in the names of folders, as in ``lang=en/year=2024/part.parquet``.

Spark, Hive, DuckDB and pyarrow write such folders, and leave the columns out of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.documents.fields import FieldSpec
from streampack.file_info import shown

if TYPE_CHECKING:
    from streampack.predicates import Predicate

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
        cls,
        path: str,
        types: FieldSpec,
        columns: Collection[str],
        where: Predicate | None = None,
        *,
        everything: bool = False,
    ) -> PathFields:
        """Return the fields among `types` and of `where`, or all, that `columns` lack.

        A field that `where` alone reads is of the type that it is compared with.
        """
        parts = (part.partition("=") for part in shown(path).split("/")[:-1] if "=" in part)
        found = {unquote(name): unquote(value) for name, _, value in parts}
        asked = where.columns_among([*found]) if where else ()
        named = found if everything else dict.fromkeys([*types.document, *asked])
        kinds = where.kinds if where else {}
        return cls(
            {
                name: _value(found[name], str if name in types.keys else kind)
                for name in named
                if name in found and name not in columns
                for kind in [None if name in types.document else kinds.get(name)]
            }
        )

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


def _value(text: str, kind: Callable[[str], Any] | None) -> Any:
    if text == _NULL:
        return None
    for convert in (int, float) if kind is None else (kind,):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
