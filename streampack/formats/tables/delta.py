"""Delta tables: a version's files and deleted rows, by a reader of the log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from streampack.arguments import explained
from streampack.errors import ConfigError
from streampack.formats.rows.columns import is_number
from streampack.formats.tables.delta_log import Action, DeltaLog, LogState
from streampack.formats.tables.snapshot import Columns, DataFile
from streampack.formats.tables.source import Snapshot, TableFiles
from streampack.predicates.bounds import Bounds
from streampack.sources.arguments import RecordFileOptions
from streampack.sources.records import DamagedFileError
from streampack.storage.file_info import FileInfo, shown, split_url
from streampack.storage.threads import in_threads

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


class Delta(TableFiles):
    """Documents in a column of a Delta table, at one version.

    The log of the table names the files of the version; rows in deletion vectors are not read.
    Columns of partitions are read like others, and a column that a file lacks is null. Columns,
    cuts and the remaining arguments are as for `Parquet`.

    Example:
        >>> source = sources.Delta("s3://bucket/table", version=12, text="body")  # doctest: +SKIP

    Args:
        table: path or URL of the table.
        version: the version to read. Name it in runs that shall be repeated; None reads the newest
            one, and after a resume the one of the state.
        text: the column that holds the text.
        tokens: the column that holds lists of token ids.
        loss_mask: with `tokens`, a column of masks or labels; see `Parquet`.
        where: a condition on columns; see `Parquet`. Files and row groups without such rows are not
            fetched.
        reading: limits of blocks and open shards.
        storage: access to files and their cache.

    Raises:
        ConfigError: there is no such table or version, its log no longer has the version, or it
            uses a feature that is not supported, such as renamed columns.
    """

    @explained
    def __init__(
        self,
        table: str,
        *,
        version: int | None = None,
        where: Any = None,
        **options: Unpack[RecordFileOptions],
    ) -> None:
        super().__init__(table, version, where=where, **options)

    def _snapshot(self) -> Snapshot:
        log = DeltaLog(self.storage, self.paths)
        version = log.newest if self.version is None else self.version
        return self._of_state(log.state(version), version)

    def _of_state(self, state: LogState, version: int) -> Snapshot:
        columns = Columns(_schema(state.metadata))
        partitions = [
            columns.schema.field(name) for name in state.metadata.get("partitionColumns") or ()
        ]
        actions = sorted(state.files.values(), key=lambda action: str(action["path"]))

        def data_file(action: Action) -> DataFile:
            path = self._path(unquote(action["path"]))
            values = dict(action.get("partitionValues") or {})
            try:
                deleted = None
                if vector := action.get("deletionVector"):
                    from streampack.formats.tables.deletion_vectors import delta_rows

                    deleted = delta_rows(self.storage, self.paths, vector)
                constants = {
                    each.name: _value(values.get(each.name), each.type) for each in partitions
                }
                size = int(action["size"])
            except (DamagedFileError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"The log of {shown(self.paths)} is damaged at {shown(path)}: {error}.",
                    "Restore the log, or pass another version.",
                    path=shown(path),
                ) from error
            bounds = partial(_bounds, columns.schema, constants, action.get("stats"))
            return DataFile(FileInfo(path, size), constants, deleted, bounds)

        with_vectors = [action for action in actions if action.get("deletionVector")]
        if len(with_vectors) > 1:  # their vectors are requests of their own
            files = in_threads(data_file, actions)
        else:
            files = [data_file(action) for action in actions]
        files.sort(key=lambda file: file.info.path)
        return Snapshot(str(state.metadata["id"]), version, columns, files)

    def _path(self, path: str) -> str:
        protocol, local = split_url(path)
        if protocol is not None or "://" in path or path.startswith("/"):
            return local if protocol is None else path
        return f"{self.paths}/{path}"


def _schema(metadata: Mapping[str, Any]) -> pa.Schema:
    fields = json.loads(metadata["schemaString"])["fields"]
    return pa.schema([(each["name"], _type(each["type"])) for each in fields])


def _type(kind: Any) -> pa.DataType:
    """Return the Arrow type of a primitive type; null for others, which files know."""
    if isinstance(kind, str) and kind.startswith("decimal("):
        precision, scale = kind[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return _TYPES.get(kind, pa.null()) if isinstance(kind, str) else pa.null()


def _bounds(
    schema: pa.Schema, constants: Mapping[str, Any], stats: str | None, name: str
) -> Bounds | None:
    """Return the bounds of a column in a file, by its partition and the statistics of the log."""
    if name in constants:
        value = constants[name]
        return Bounds(only_null=True) if value is None else Bounds(value, value)
    if not stats or name not in schema.names:
        return None
    kind, known = schema.field(name).type, _parsed(stats)
    rows = known.get("numRecords")
    if rows and known.get("nullCount", {}).get(name) == rows:
        return Bounds(only_null=True)
    low, high = (known.get(side, {}).get(name) for side in ("minValues", "maxValues"))
    if pa.types.is_date32(kind) and isinstance(low, str) and isinstance(high, str):
        return Bounds(date.fromisoformat(low), date.fromisoformat(high))
    # A float32 may have been rounded where it was written as text.
    comparable = pa.types.is_string(kind) or (is_number(kind) and kind != pa.float32())
    return Bounds(low, high) if comparable else None


@lru_cache(1)  # a condition may compare several columns of a file
def _parsed(stats: str) -> dict[str, Any]:
    try:
        known = json.loads(stats)
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


def _value(text: str | None, kind: pa.DataType) -> Any:
    """Return the value of a partition, which a log has as text; an empty one is null."""
    if not text:
        return None
    if pa.types.is_binary(kind):
        return text.encode("latin-1")
    if pa.types.is_timestamp(kind):
        text = text.removesuffix("Z")
        naive = pa.scalar(text).cast(pa.timestamp("us"))
        return naive.cast(kind).as_py() if kind.tz is None else naive.as_py()
    return pa.scalar(text).cast(kind).as_py()
