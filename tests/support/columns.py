"""The same columns in every form that a corpus with named fields may have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from tests.support.mosaic import streaming_module

Columns = dict[str, Any]


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    return pa.table(columns).to_pylist()  # type: ignore[no-any-return]


def write_lines(columns: Columns, path: str = "a.jsonl") -> str:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows_of(columns)))
    return path


def write_parquet(columns: Columns, path: str = "a.parquet") -> str:
    pq.write_table(pa.table(columns), path)
    return path


def write_arrow(columns: Columns, path: str = "a.feather") -> str:
    feather.write_feather(pa.table(columns), path)
    return path


def write_mds(columns: Columns, path: str = "mds") -> str:
    """Lists of numbers as arrays; values without an encoding in MDS as JSON."""

    def encoding(value: Any) -> str:
        if not isinstance(value, list):
            return {str: "str", int: "int", float: "float64"}[type(value)]
        arrays = {"i": "ndarray:int64", "f": "ndarray:float32", "b": "ndarray:uint8"}
        return arrays.get(np.array(value).dtype.kind, "json")

    encodings = {name: encoding(values[0]) for name, values in columns.items()}
    with (
        streaming_module("base.format.mds") as module,
        module.MDSWriter(out=path, columns=encodings) as writer,
    ):
        for row in rows_of(columns):
            for name, kind in encodings.items():
                if kind.startswith(("ndarray", "float")):
                    row[name] = np.array(row[name], dtype=kind.rpartition(":")[2])[()]
            writer.write(row)
    return path


def _dataset(columns: Columns) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


def _saved(columns: Columns) -> str:
    _dataset(columns).save_to_disk("saved")
    return "saved"


#: Files are written in the current folder.
KINDS: dict[str, Callable[[Columns], Any]] = {
    "JSON lines": write_lines,
    "Parquet": write_parquet,
    "Arrow": write_arrow,
    "MDS": write_mds,
    "save_to_disk": _saved,
    "Dataset": _dataset,
    "streaming": lambda columns: _dataset(columns).to_iterable_dataset(),
    "table": pa.table,
    "pandas": lambda columns: pa.table(columns).to_pandas(),
    "records": rows_of,
    "generator": lambda columns: lambda: iter(rows_of(columns)),
}
