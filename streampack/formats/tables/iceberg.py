"""Iceberg tables: a snapshot's files and deleted rows, listed by pyiceberg.

pyiceberg is used in the process that lists. Files are found by their columns' field ids, so that
renamed columns keep their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack.arguments import explained
from streampack.errors import ConfigError, StateError
from streampack.extras import missing_package
from streampack.file_info import FileInfo, shown, split_url
from streampack.formats.tables.deletion_vectors import iceberg_rows
from streampack.formats.tables.growth import Commit, History, deleted_of
from streampack.formats.tables.snapshot import Columns, DataFile
from streampack.formats.tables.source import Snapshot, TableFiles
from streampack.predicates.bounds import Bounds
from streampack.sources.arguments import RecordFileOptions
from streampack.sources.records import DamagedFileError

if TYPE_CHECKING:
    from typing_extensions import Unpack

_HINT = "metadata/version-hint.text"
_EPOCH = date(1970, 1, 1)


class Iceberg(TableFiles):
    """Documents in a column of an Iceberg table, at one snapshot.

    pyiceberg lists the files of the snapshot; they are read like Parquet. Rows of positional delete
    files and deletion vectors are not read. Renamed columns have their name in the snapshot, and a
    column that a file lacks is null. Columns, cuts and the other arguments are as for `Parquet`.

    Example:
        >>> table = catalog.load_table("web.pages")  # doctest: +SKIP
        >>> source = sources.Iceberg(table, snapshot_id=7243, text="body")  # doctest: +SKIP

    Args:
        table: a table of pyiceberg; or the path or URL of its metadata file (`*.metadata.json`), or
            of a folder with a `metadata/version-hint.text`.
        snapshot_id: the snapshot to read. Name it in runs that shall be repeated; None reads the
            current one, and after a resume the one of the state.
        key: a column with another value in each row, texts or integers. A run that goes on with a
            later snapshot recognises documents in rewritten files by it (docs/sources.md).
        text: the column that holds the text.
        tokens: the column that holds lists of token ids.
        loss_mask: with `tokens`, a column of masks or labels; see `Parquet`.
        where: a condition on columns; see `Parquet`. Files and row groups without such rows are not
            fetched.
        reading: limits of blocks and open shards.
        storage: access to files and their cache.

    Raises:
        ConfigError: there is no such table or snapshot; or it has equality deletes, or files of
            another format than Parquet.
        MissingPackageError: pyiceberg is not installed.
    """

    version_name, usual_version = "snapshot_id", "the current one"

    @explained
    def __init__(
        self,
        table: Any,
        *,
        snapshot_id: int | None = None,
        key: str | None = None,
        where: Any = None,
        **options: Unpack[RecordFileOptions],
    ) -> None:
        location = getattr(table, "metadata_location", table)
        super().__init__(location, snapshot_id, key, where=where, **options)
        self._table = None if location is table else table
        # Snapshots by id. They never change, and a run that goes on needs those between.
        self._snapshots: dict[int, Snapshot] = {}

    def __getstate__(self) -> dict[str, Any]:
        # The table may have a connection.
        return {**super().__getstate__(), "_table": None, "_snapshots": {}}

    def _snapshot(self, wanted: int | None) -> Snapshot:
        if wanted not in self._snapshots:
            snapshot = self._list_snapshot(wanted)
            self._snapshots[snapshot.version] = snapshot
            return snapshot
        return self._snapshots[wanted]

    def _list_snapshot(self, wanted: int | None) -> Snapshot:
        table = self._table or self._opened()
        current = table.current_snapshot() if wanted is None else table.snapshot_by_id(wanted)
        if current is None:
            known = [each.snapshot_id for each in table.metadata.snapshots]
            raise ConfigError(
                f"{shown(self.paths)} has no snapshot {'yet' if wanted is None else wanted}.",
                f"Pass one of its snapshots: {known[-10:]}.",
                setting="snapshot_id",
                path=shown(self.paths),
            )
        scan = table.scan(snapshot_id=current.snapshot_id)
        schema = scan.projection()
        try:
            tasks = list(scan.plan_files())
        except (ValueError, NotImplementedError) as error:
            raise self._unsupported(f"what pyiceberg does not read: {str(error)[:200]}") from error
        deleted = self._deleted(tasks)
        files = []
        for task in tasks:
            file = task.file
            if file.file_format.name != "PARQUET":
                raise self._unsupported(f"a data file in {file.file_format.name}")
            path = local_path(file.file_path)
            bounds = partial(_bounds, schema, file)
            rows = deleted.get(path)
            constants = _constants(table, schema, file)
            info = FileInfo(path, file.file_size_in_bytes)
            files.append(DataFile(info, constants, rows, bounds))
        files.sort(key=lambda file: file.info.path)
        columns = self._columns_of(table, schema)
        return Snapshot(str(table.metadata.table_uuid), current.snapshot_id, columns, files)

    def _history(self, first: int, previous: int, later: Snapshot) -> History:
        table = self._table or self._opened()
        chain = [table.snapshot_by_id(later.version)]
        while chain[-1] is not None and chain[-1].snapshot_id != first:
            parent = chain[-1].parent_snapshot_id
            chain.append(None if parent is None else table.snapshot_by_id(parent))
        if chain[-1] is None or previous not in [each.snapshot_id for each in chain]:
            raise StateError(
                f"The run is at snapshot {previous} of {shown(self.paths)}, and snapshot "
                f"{later.version} did not follow from it, or snapshots between have expired.",
                "Pass a snapshot_id that followed, or start a new run.",
                setting="snapshot_id",
                path=shown(self.paths),
            )
        known: dict[int, dict[str, DataFile]] = {}
        removals: dict[str, int] = {}  # the last snapshot that had a file

        def files_at(snapshot: int) -> dict[str, DataFile]:
            if snapshot not in known:
                known[snapshot] = {f.info.path: f for f in self._snapshot(snapshot).files}
            return known[snapshot]

        def commit(before: int, snapshot: Any) -> Commit:
            removed, added, deletes = _changed_files(table, snapshot)
            removals.update(dict.fromkeys(removed, before))
            changed: set[str] = set()
            if deletes:
                then, now = files_at(before), files_at(snapshot.snapshot_id)
                changed = {
                    path
                    for path in then.keys() & now.keys()
                    if not np.array_equal(deleted_of(then[path]), deleted_of(now[path]))
                }
            same = snapshot.summary is not None and snapshot.summary.operation.value == "replace"
            return Commit(removed, added, changed, same)

        pairs = pairwise(reversed(chain))
        commits = [commit(before.snapshot_id, snapshot) for before, snapshot in pairs]
        live = {file.info.path: file for file in later.files}
        return History(commits, live, lambda path: files_at(removals[path])[path])

    def _opened(self) -> Any:
        try:
            from pyiceberg.table import StaticTable
        except ImportError as error:
            raise missing_package("pyiceberg", "iceberg", path=shown(self.paths)) from error
        location = self.paths
        if not location.endswith(".json"):
            try:
                size = self.storage.size(f"{location}/{_HINT}")
                hint = self.storage.read_range(f"{location}/{_HINT}", 0, size).decode().strip()
            except Exception as error:
                raise ConfigError(
                    f"{shown(location)} has no {_HINT}, so its current metadata is unknown.",
                    "Pass the metadata file that the catalog names, or catalog.load_table(name).",
                    path=shown(location),
                ) from error
            name = hint if hint.endswith(".json") else f"v{hint}.metadata.json"
            location = f"{location}/metadata/{name}"
        return StaticTable.from_metadata(location, dict(self.storage.storage_options))

    def _columns_of(self, table: Any, schema: Any) -> Columns:
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.schema import index_by_id

        if any(getattr(each, "initial_default", None) is not None for each in schema.fields):
            raise self._unsupported("columns with an initial default")
        arrow = schema_to_pyarrow(schema, include_field_ids=False)
        names: dict[str, list[str]] = {}
        for each in schema.fields:
            of_id = [
                f.name
                for s in table.metadata.schemas
                for f in s.fields
                if f.field_id == each.field_id
            ]
            names[each.name] = sorted(set(of_id))
        mapping = table.name_mapping()
        mapped = {
            name: each.field_id
            for each in (mapping.root if mapping else ())
            for name in each.names
            if each.field_id is not None
        }
        nested = {number: each.name for number, each in index_by_id(schema).items()}
        ids = {each.name: each.field_id for each in schema.fields}
        return Columns(arrow, ids, nested, names, mapped)

    def _deleted(self, tasks: Iterable[Any]) -> dict[str, NDArray[np.int64]]:
        """Return the deleted rows of data files by path."""
        parts: dict[str, list[NDArray[np.int64]]] = {}
        known: dict[str, dict[str, NDArray[np.int64]]] = {}
        for task in tasks:
            path = local_path(task.file.file_path)
            for file in task.delete_files:
                name = local_path(file.file_path)
                if file.content.name != "POSITION_DELETES":
                    raise self._unsupported("equality deletes")
                if name not in known:
                    known[name] = self._rows_in(name, file.file_format.name)
                if path in known[name]:
                    parts.setdefault(path, []).append(known[name][path])
        return {path: np.unique(np.concatenate(rows)) for path, rows in parts.items()}

    def _rows_in(self, path: str, kind: str) -> dict[str, NDArray[np.int64]]:
        """Return the deleted rows in a delete file by the path of the data file."""
        with self.storage.open(path) as file:
            data = file.read(0, file.num_bytes)
        try:
            if kind == "PUFFIN":
                return dict(_vectors(data, shown(path)))
            if kind != "PARQUET":
                raise self._unsupported(f"a delete file in {kind}")
            table = pq.read_table(pa.BufferReader(data), columns=["file_path", "pos"])
        except (pa.ArrowException, OSError, ValueError, DamagedFileError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"The delete file {shown(path)} cannot be read: {str(error)[:200]}.",
                "Restore it, or pass another snapshot_id.",
                path=shown(path),
            ) from error
        rows: dict[str, NDArray[np.int64]] = {}
        for group in table.group_by("file_path").aggregate([("pos", "list")]).to_pylist():
            deleted = np.array(group["pos_list"], dtype=np.int64)
            rows[local_path(group["file_path"])] = np.unique(deleted)
        return rows

    def _unsupported(self, feature: str) -> ConfigError:
        return ConfigError(
            f"{shown(self.paths)} is an Iceberg table with {feature}, which is not supported.",
            "Rewrite its data files with an engine such as Spark, and read the new snapshot.",
            path=shown(self.paths),
        )


def _changed_files(table: Any, snapshot: Any) -> tuple[set[str], set[str], bool]:
    """Return the data files that a snapshot removed and added, and whether it has new deletes."""
    removed, added, deletes = set(), set(), False
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            if entry.snapshot_id != snapshot.snapshot_id or entry.status.name == "EXISTING":
                continue
            if entry.data_file.content.name != "DATA":
                deletes = True
            elif entry.status.name == "ADDED":
                added.add(local_path(entry.data_file.file_path))
            else:
                removed.add(local_path(entry.data_file.file_path))
    return removed, added, deletes


def local_path(location: str) -> str:
    """Return a local path of a `file:` URL, and other URLs as they are."""
    if location.startswith("file:/") and not location.startswith("file://"):
        return location.removeprefix("file:")
    protocol, path = split_url(location)
    return path if protocol is None else location


def _vectors(data: bytes, name: str) -> Iterator[tuple[str, NDArray[np.int64]]]:
    from pyiceberg.table.puffin import PuffinFile

    puffin = PuffinFile(data)
    for blob in puffin.footer.blobs:
        if blob.type == "deletion-vector-v1":
            of_file = blob.properties["referenced-data-file"]
            cardinality = int(blob.properties["cardinality"])
            yield (
                local_path(of_file),
                iceberg_rows(puffin.get_blob_payload(blob), cardinality, name),
            )


def _constants(table: Any, schema: Any, file: Any) -> dict[str, Any]:
    """Return the values of identity partitions, which migrated files may lack as columns."""
    names = {each.field_id: each.name for each in schema.fields}
    spec = table.specs()[file.spec_id]
    return {
        names[each.source_id]: file.partition[at]
        for at, each in enumerate(spec.fields)
        if str(each.transform) == "identity" and each.source_id in names
    }


def _bounds(schema: Any, file: Any, name: str) -> Bounds | None:
    """Return the bounds of a column in a data file, by the statistics of its manifest."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import (
        BooleanType,
        DateType,
        DoubleType,
        IntegerType,
        LongType,
        StringType,
    )

    field = next((each for each in schema.fields if each.name == name), None)
    if field is None:
        return None
    nulls = (file.null_value_counts or {}).get(field.field_id)
    if nulls is not None and nulls == file.record_count:
        return Bounds(only_null=True)
    sides: list[Mapping[int, bytes]] = [file.lower_bounds or {}, file.upper_bounds or {}]
    kinds = (BooleanType, DateType, DoubleType, IntegerType, LongType, StringType)
    if not isinstance(field.field_type, kinds) or any(field.field_id not in s for s in sides):
        return None
    low, high = (side[field.field_id] for side in sides)
    if isinstance(field.field_type, StringType):
        return Bounds(bytes(low), bytes(high))
    if isinstance(field.field_type, LongType) and len(low) == 4:  # written before a promotion
        return None
    values = [from_bytes(field.field_type, each) for each in (low, high)]
    if isinstance(field.field_type, DateType):
        values = [_EPOCH + timedelta(days=each) for each in values]
    return Bounds(*values)
