"""Iceberg tables with deleted rows in delete files, which pyiceberg reads and does not write.

Every commit is one of pyiceberg's snapshots with manifests of its own; the expected keys of each
snapshot are kept apart from it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyroaring
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.typedef import Record

PATH_ID = 2147483546  # id of the column with the path of the data file
Entries = list[tuple[ManifestEntryStatus, DataFile, int, int | None]]
ADDED, EXISTING, DELETED = (
    ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED,
)  # fmt: skip


def rows(keys: Iterable[int]) -> pa.Table:
    keys = list(keys)
    texts = [f"document {key}" for key in keys]
    langs = [("de", "en")[key % 2] for key in keys]
    return pa.table({"key": pa.array(keys, pa.int64()), "text": texts, "lang": langs})


class _DeleteManifest(ManifestWriterV2):
    """A manifest of delete files, with the fields of version 3."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def version(self) -> Any:
        return 3

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def new_writer(self) -> Any:
        from pyiceberg.avro.file import AvroOutputFile

        schema = self._with_partition(3)
        return AvroOutputFile(
            output_file=self._output_file, file_schema=schema, record_schema=schema,
            schema_name="manifest_entry", metadata=self._meta,
        )  # fmt: skip


class _Snapshot(_SnapshotProducer[Any]):
    """A snapshot with these changes."""

    removed: set[str]
    of_deletes: dict[int, Entries]

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        return Summary(operation=self._operation)

    def _deleted_entries(self) -> list[ManifestEntry]:
        return []

    def _existing_manifests(self) -> list[Any]:
        return []

    def _manifests(self) -> list[Any]:
        meta = self._transaction.table_metadata
        manifests = []
        if self._added_data_files:
            added: Entries = [
                (ADDED, each, self.snapshot_id, None) for each in self._added_data_files
            ]
            manifests.append(self._written(self.new_manifest_writer(meta.spec()), added))
        parent = meta.current_snapshot()
        for manifest in parent.manifests(self._io) if parent else ():
            if manifest.content != ManifestContent.DATA:
                continue
            entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
            if any(entry.data_file.file_path in self.removed for entry in entries):
                changed: Entries = [
                    (DELETED, entry.data_file, self.snapshot_id, entry.sequence_number)
                    if entry.data_file.file_path in self.removed
                    else (EXISTING, entry.data_file, entry.snapshot_id, entry.sequence_number)
                    for entry in entries
                ]
                writer = self.new_manifest_writer(self.spec(manifest.partition_spec_id))
                manifests.append(self._written(writer, changed))
            elif entries:
                manifests.append(manifest)
        for spec, deletes in self.of_deletes.items():
            arguments = (
                self.spec(spec), self.schema(), self.new_manifest_output(), self.snapshot_id,
                self._compression,
            )  # fmt: skip
            manifests.append(self._written(_DeleteManifest(*arguments), deletes))
        return manifests

    def _written(self, writer: Any, entries: Entries) -> Any:
        with writer:
            for status, file, snapshot, sequence in entries:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=status,
                        snapshot_id=snapshot,
                        sequence_number=sequence,
                        file_sequence_number=sequence,
                        data_file=file,
                    )
                )
        return writer.to_manifest_file()


class Written:
    """A table under a folder.

    Args:
        folder: folder of the table and its catalog.
        vectors: True for deletion vectors, of which one puffin file has several, False for
            positional delete files.

    Attributes:
        expected: keys of the rows at each snapshot, in order.
    """

    def __init__(self, folder: Path, *, vectors: bool) -> None:
        self.folder, self.vectors = folder, vectors
        catalog = SqlCatalog(
            "test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
        )
        catalog.create_namespace("web")
        self.table = catalog.create_table("web.pages", schema=rows([0]).schema)
        self.expected: dict[int, set[int]] = {}
        self.files: dict[str, list[int]] = {}  # keys of a live data file, by row
        self.gone: dict[str, set[int]] = {}  # deleted rows of a live data file
        self._of: dict[str, DataFile] = {}
        self._deletes: dict[Any, tuple[int, DataFile, int, int]] = {}  # live delete files
        self._names = 0

    def commit(
        self,
        operation: Operation,
        *,
        add: Iterable[int] = (),
        remove: Sequence[str] = (),
        delete: Mapping[str, Iterable[int]] | None = None,
        drop_deletes: bool = False,
        by_value: bool = False,
    ) -> list[str]:
        """Write a snapshot; return the paths of added data files.

        Args:
            operation: its operation.
            add: keys of added rows.
            remove: paths of data files.
            delete: indices of rows to delete by the path of the data file.
            drop_deletes: True to remove the delete files of removed data files.
            by_value: True to add a file of equality deletes.
        """
        keys = list(add)
        transaction = self.table.transaction()
        snapshot = _Snapshot(operation, transaction, self.table.io)
        sequence = self.table.metadata.last_sequence_number + 1
        snapshot.removed = set(remove)
        added = []
        if keys:
            frame = rows(keys)
            for file in _dataframe_to_data_files(self.table.metadata, frame, self.table.io):
                file.spec_id = self.table.spec().spec_id
                snapshot.append_data_file(file)
                path = file.file_path
                read = pq.read_table(path.removeprefix("file://"))
                self._of[path], self.files[path] = file, read["key"].to_pylist()
                added.append(path)
        for path in remove:
            del self.files[path]
            self.gone.pop(path, None)
        of_deletes: dict[int, Entries] = {}
        if drop_deletes or delete or by_value:
            written = self._delete_files(delete or {}, sequence, by_value)
            known = dict(self._deletes)
            for name, (spec, file, in_snapshot, number) in known.items():
                # A data file has one vector; a positional delete file stays.
                status = EXISTING
                if (self.vectors and name in written) or (drop_deletes and name in remove):
                    status, in_snapshot = DELETED, snapshot.snapshot_id
                    del self._deletes[name]
                of_deletes.setdefault(spec, []).append((status, file, in_snapshot, number))
            for name, (spec, file) in written.items():
                of_deletes.setdefault(spec, []).append((ADDED, file, snapshot.snapshot_id, None))
                self._deletes[name] = spec, file, snapshot.snapshot_id, sequence
            snapshot.of_deletes = of_deletes
        else:
            snapshot.of_deletes = {}
            for spec, file, in_snapshot, number in self._deletes.values():
                of_spec = snapshot.of_deletes.setdefault(spec, [])
                of_spec.append((EXISTING, file, in_snapshot, number))
        snapshot.commit()
        transaction.commit_transaction()
        self.expected[snapshot.snapshot_id] = {
            key
            for path, of_file in self.files.items()
            for row, key in enumerate(of_file)
            if row not in self.gone.get(path, ())
        }
        return added

    def path(self) -> str:
        """The metadata file; of a table with deletion vectors as version 3."""
        location = self.table.metadata_location
        if not self.vectors:
            return location
        metadata = json.loads(Path(location.removeprefix("file://")).read_text())
        metadata.update({"format-version": 3, "next-row-id": 0})
        upgraded = self.folder / "third.metadata.json"
        upgraded.write_text(json.dumps(metadata))
        return str(upgraded)

    # ------------------------------------------------------------------ delete files

    def _delete_files(
        self, delete: Mapping[str, Iterable[int]], sequence: int, by_value: bool
    ) -> dict[Any, tuple[int, DataFile]]:
        for path, numbers in delete.items():
            self.gone.setdefault(path, set()).update(numbers)
        if by_value:
            return {"values": self._equality_deletes()}
        return self._puffin(delete) if self.vectors else self._positions(delete)

    def _name(self, ending: str) -> Path:
        self._names += 1
        return self.folder / "warehouse" / f"deletes-{self._names}.{ending}"

    def _data_file(self, path: Path, of: DataFile | None, count: int, **more: Any) -> DataFile:
        arguments = {
            "content": DataFileContent.POSITION_DELETES, "file_path": f"file://{path}",
            "file_format": FileFormat.PARQUET, "record_count": count,
            "partition": Record() if of is None else of.partition,
            "file_size_in_bytes": path.stat().st_size, **more,
        }  # fmt: skip
        return DataFile.from_args(_table_format_version=3, **arguments)

    def _positions(self, delete: Mapping[str, Iterable[int]]) -> dict[Any, tuple[int, DataFile]]:
        """A delete file for each partition; its path has bounds if it is of one data file."""
        partitions: dict[Any, dict[str, list[int]]] = {}
        for path, numbers in delete.items():
            file = self._of[path]
            key = file.spec_id, repr(file.partition)
            partitions.setdefault(key, {})[path] = sorted(numbers)
        written: dict[Any, tuple[int, DataFile]] = {}
        for (spec, _), of_files in partitions.items():
            pairs = [(path, row) for path in sorted(of_files) for row in of_files[path]]
            name = self._name("parquet")
            deletes = {"file_path": [p for p, _ in pairs], "pos": [row for _, row in pairs]}
            pq.write_table(pa.table(deletes), name)
            only = next(iter(of_files)) if len(of_files) == 1 else None
            bounds = {} if only is None else {PATH_ID: only.encode()}
            more = {"lower_bounds": bounds, "upper_bounds": bounds} if bounds else {}
            of = self._of[next(iter(of_files))]
            key = only if only is not None and only not in self._deletes else str(name)
            written[key] = spec, self._data_file(name, of, len(pairs), **more)
        return written

    def _puffin(self, delete: Mapping[str, Iterable[int]]) -> dict[Any, tuple[int, DataFile]]:
        """One file with the vectors of all data files; a vector has all deleted rows so far."""
        name = self._name("puffin")
        data, blobs, spans = b"PFA1", [], {}
        for path in delete:
            bitmap = pyroaring.BitMap(self.gone[path])
            bitmap.run_optimize()
            inner = b"\xd1\xd3\x39\x64" + struct.pack("<qI", 1, 0) + bitmap.serialize()
            blob = struct.pack(">i", len(inner)) + inner + struct.pack(">I", zlib.crc32(inner))
            properties = {"referenced-data-file": path, "cardinality": str(len(bitmap))}
            spans[path] = len(data), len(blob)
            blobs.append({
                "type": "deletion-vector-v1", "fields": [2147483645], "snapshot-id": -1,
                "sequence-number": -1, "offset": len(data), "length": len(blob),
                "properties": properties,
            })  # fmt: skip
            data += blob
        footer = json.dumps({"blobs": blobs, "properties": {}}).encode()
        data += b"PFA1" + footer + struct.pack("<iI", len(footer), 0) + b"PFA1"
        name.write_bytes(data)
        return {
            path: (
                self._of[path].spec_id,
                self._data_file(
                    name, self._of[path], len(self.gone[path]), file_format=FileFormat.PUFFIN,
                    referenced_data_file=path, content_offset=spans[path][0],
                    content_size_in_bytes=spans[path][1],
                ),
            )
            for path in delete
        }  # fmt: skip

    def _equality_deletes(self) -> tuple[int, DataFile]:
        name = self._name("parquet")
        pq.write_table(pa.table({"key": pa.array([5], pa.int64())}), name)
        content = DataFileContent.EQUALITY_DELETES
        return 0, self._data_file(name, None, 1, content=content, equality_ids=[1])


def written(folder: Path, *, vectors: bool) -> Written:
    """A table of 13 snapshots: appends, deletes of rows and files, compaction, partitions."""
    table = Written(folder, vectors=vectors)
    (first,) = table.commit(Operation.APPEND, add=range(200))
    (second,) = table.commit(Operation.APPEND, add=range(200, 260))
    table.commit(Operation.DELETE, delete={first: range(20, 40), second: [0, 59]})
    table.commit(Operation.DELETE, delete={first: [0, 199, 25, 100]})  # one of them again
    (third,) = table.commit(Operation.APPEND, add=range(300, 420))
    table.commit(Operation.DELETE, delete={second: range(30), third: [*range(0, 120, 3)]})
    live = [key for r, key in enumerate(table.files[second]) if r not in table.gone[second]]
    live += [key for r, key in enumerate(table.files[third]) if r not in table.gone[third]]
    (compacted,) = table.commit(
        Operation.REPLACE, add=live, remove=[second, third], drop_deletes=vectors
    )
    table.commit(Operation.DELETE, delete={compacted: range(5, 50), first: range(150, 190)})
    with table.table.update_spec() as spec:
        spec.add_identity("lang")
    parts = table.commit(Operation.APPEND, add=range(500, 600))
    table.commit(Operation.DELETE, delete={parts[0]: range(10), parts[1]: range(20, 30)})
    table.commit(Operation.OVERWRITE, add=range(600, 640), delete={parts[1]: range(25, 45)})
    table.commit(Operation.DELETE, remove=[first], drop_deletes=vectors)
    table.commit(Operation.APPEND, add=range(700, 720))
    return table
