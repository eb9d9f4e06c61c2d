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
from streampack.errors import ConfigError, StateError
from streampack.file_info import FileInfo, shown, split_url
from streampack.formats.rows.columns import is_number
from streampack.formats.tables.delta_log import Action, DeltaLog, LogState, changes_of
from streampack.formats.tables.growth import Commit, History
from streampack.formats.tables.snapshot import Columns, DataFile
from streampack.formats.tables.source import Snapshot, TableFiles
from streampack.predicates.bounds import Bounds
from streampack.sources.arguments import RecordFileOptions
from streampack.sources.records import DamagedFileError
from streampack.threads import in_threads

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
        key: a column with another value in each row, texts or integers. A run that goes on with a
            later version recognises documents in rewritten files by it; tables with row tracking
            need none (docs/sources.md).
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
        key: str | None = None,
        where: Any = None,
        **options: Unpack[RecordFileOptions],
    ) -> None:
        super().__init__(table, version, key, where=where, **options)

    def _snapshot(self, version: int | None) -> Snapshot:
        log = DeltaLog(self.storage, self.paths)
        version = log.newest if version is None else version
        return self._of_state(log.state(version), version)

    def _history(self, first: int, previous: int, later: Snapshot) -> History:
        if later.version < previous:
            raise StateError(
                f"The run is at version {previous} of {shown(self.paths)}, and version "
                f"{later.version} is an earlier one.",
                "Pass a later version, or start a new run.",
                setting="version",
                path=shown(self.paths),
            )
        log = DeltaLog(self.storage, self.paths)
        versions = range(first + 1, later.version + 1)
        began = log.state(first)
        changes = changes_of(began, zip(versions, in_threads(log.commit, versions), strict=True))
        commits = [
            Commit(
                {*map(self._path, each.removed)},
                {*map(self._path, each.added)},
                {*map(self._path, each.changed)},
                each.same,
            )
            for each in changes.commits
        ]
        live = {file.info.path: file for file in later.files}
        last = {self._path(path): action for path, action in changes.last.items()}

        def before(path: str) -> DataFile:
            return self._data_file(last[path], later.columns)

        return History(commits, live, before)

    def _located(self, path: str) -> str:
        return self._path(path)

    def _of_state(self, state: LogState, version: int) -> Snapshot:
        settings = dict(state.metadata.get("configuration") or {})
        row_ids = None
        if settings.get("delta.enableRowTracking") == "true":
            row_ids = settings.get("delta.rowTracking.materializedRowIdColumnName", "")
        columns = Columns(_schema(state.metadata), row_ids=row_ids)
        actions = sorted(state.files.values(), key=lambda action: str(action["path"]))
        data_file = partial(self._data_file, columns=columns)
        with_vectors = [action for action in actions if action.get("deletionVector")]
        if len(with_vectors) > 1:  # their vectors are requests of their own
            files = in_threads(data_file, actions)
        else:
            files = [data_file(action) for action in actions]
        files.sort(key=lambda file: file.info.path)
        return Snapshot(str(state.metadata["id"]), version, columns, files)

    def _data_file(self, action: Action, columns: Columns) -> DataFile:
        path = self._path(unquote(action["path"]))
        try:
            deleted = None
            if vector := action.get("deletionVector"):
                from streampack.formats.tables.deletion_vectors import delta_rows

                deleted = delta_rows(self.storage, self.paths, vector)
            constants = {
                name: _value(value, columns.schema.field(name).type)
                for name, value in dict(action.get("partitionValues") or {}).items()
                if name in columns.schema.names
            }
            size = int(action["size"])
        except (DamagedFileError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"The log of {shown(self.paths)} is damaged at {shown(path)}: {error}.",
                "Restore the log, or pass another version.",
                path=shown(path),
            ) from error
        bounds = partial(_bounds, columns.schema, constants, action.get("stats"))
        return DataFile(FileInfo(path, size), constants, deleted, bounds, action.get("baseRowId"))

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
