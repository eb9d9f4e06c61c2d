"""Tables as sources: the Parquet files of one snapshot, without the rows that are deleted."""

from __future__ import annotations

import copy
import logging
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.arguments import whole_number
from streampack.errors import ConfigError
from streampack.file_info import FileInfo, shown
from streampack.files.tables import located
from streampack.formats.parquet.source import Parquet
from streampack.formats.rows.schemas import DAMAGE
from streampack.formats.rows.source import OpenRows
from streampack.formats.tables.growth import History, Line
from streampack.formats.tables.snapshot import Columns, DataFile, FileView
from streampack.sources.base import LinePart
from streampack.sources.manifest import Manifest, ShardOrder
from streampack.storage.files import StoredFile

if TYPE_CHECKING:
    from streampack.fields.paths import PathFields

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of a table.

    Attributes:
        table: id of the table, which other tables at its path do not have.
        version: the version, or the id of the snapshot.
        columns: its columns.
        files: its files, sorted by path.
    """

    table: str
    version: int
    columns: Columns
    files: Sequence[DataFile]


@dataclass(frozen=True, slots=True)
class _Rows:
    """How the rows of all files become rows of the table, for `Manifest.details`.

    Attributes:
        columns: see `Snapshot`.
        partitions: the different constants of files; partition: (S,) index of each file's.
        deleted: deleted rows by shard.
    """

    columns: Columns
    partitions: Sequence[Mapping[str, Any]]
    partition: NDArray[np.int32]
    deleted: Mapping[int, NDArray[np.int64]]

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Rows:
        known: dict[str, int] = {}
        partitions: list[Mapping[str, Any]] = []
        numbers = []
        for file in snapshot.files:
            key = repr(sorted(file.constants.items(), key=lambda pair: pair[0]))
            numbers.append(known.setdefault(key, len(known)))
            if len(known) > len(partitions):
                partitions.append(file.constants)
        deleted = {k: f.deleted for k, f in enumerate(snapshot.files) if f.deleted is not None}
        return cls(snapshot.columns, partitions, np.array(numbers, dtype=np.int32), deleted)

    def view(self, shard: int, physical: pa.Schema) -> FileView:
        """Return the view of a file with this schema."""
        constants = self.partitions[int(self.partition[shard])]
        return FileView.of(self.columns, physical, constants, self.deleted.get(shard))


class TableFiles(Parquet):
    """The Parquet files of a snapshot of a table.

    Subclasses implement `_snapshot`.

    Args:
        table: path or URL of the table.
        version: the version; None is the newest one, or after a resume the one of the state.
        reading, storage, named: see `Parquet`.
    """

    listing = ""
    listing_fields = ("paths", "fields", "version", "earlier", "key", "where")
    #: The argument that names the version, and the one that None names.
    version_name, usual_version = "version", "the newest"

    #: Earlier versions that the run began with and went on to, in order; see `growth`.
    earlier: tuple[int, ...] = ()

    def __init__(
        self, table: Any, version: int | None, key: str | None = None, **options: Any
    ) -> None:
        tables = [table] if isinstance(table, str) or not isinstance(table, Sequence) else table
        if len(tables) != 1:
            raise ConfigError(
                f"{self._kind} must be given one table, got {len(tables)}.",
                "Make several tables the sources of a Mixture.",
                setting="paths",
            )
        if version is not None:
            usual = f"or None ({self.usual_version})"
            version = whole_number(self.version_name, version, least=0, otherwise=usual)
        super().__init__(located(str(tables[0])), **options)
        self.version, self.key = version, key
        self._being_listed: _Rows | None = None

    @abstractmethod
    def _snapshot(self, version: int | None) -> Snapshot:
        """Read a snapshot; None is the usual one."""

    @abstractmethod
    def _history(self, first: int, previous: int, later: Snapshot) -> History:
        """Return the changes of a run from its first version to a later one.

        Raises:
            StateError: `later` did not follow on its previous version.
        """

    @property
    def _rows(self) -> _Rows:
        rows: _Rows = self._being_listed or self.manifest.details["rows"]
        return rows

    def list_shards(self) -> Manifest:
        """Read the log of the table, and the footers of a sample of the files."""
        snapshot = self._snapshot(self.version)
        line = Line.of(snapshot.files)
        if self.earlier:
            from streampack.formats.tables.grown import grown_line

            snapshot, line = grown_line(self, snapshot)
        count = len(line.files)
        if self.where is not None:
            line = line.only([self.where.may_match(file.bounds) for file in line.files])
        snapshot = replace(snapshot, files=line.files)
        if not snapshot.files:
            fact = f"where leaves out all {count:,} files" if count else "the table has no rows"
            raise ConfigError(
                f"{fact[0].upper()}{fact[1:]} of {shown(self.paths)}, version {snapshot.version}.",
                f"Pass another {'where' if count else self.version_name}=, or another table.",
                setting="where" if count else self.version_name,
                path=shown(self.paths),
            )
        self._being_listed = _Rows.of(snapshot)
        self._listed_files = [file.info for file in snapshot.files]
        try:
            manifest = super().list_shards()
        finally:
            rows, self._being_listed = self._being_listed, None
            del self._listed_files
        details = manifest.details
        details.update(rows=rows, table=snapshot.table, version=snapshot.version)
        details.update(masked=line.masked, bounds=line.bounds)
        if pruned := count - len(snapshot.files):
            details["left_out"] += f", and {pruned:,} of {count:,} files before"
        return manifest

    @property
    def _field_ids(self) -> Mapping[str, int] | None:  # type: ignore[override]
        return self._rows.columns.ids

    def _files(self) -> Sequence[FileInfo]:
        return self._listed_files

    def _read_schemas(self, schemas: Mapping[str, pa.Schema]) -> bool:
        numbers = {info.path: k for k, info in enumerate(self._listed_files)}
        try:
            schemas = {
                path: self._rows.view(numbers[path], schema).schema
                for path, schema in schemas.items()
            }
        except DAMAGE as error:
            raise ConfigError(
                f"{shown(self.paths)} cannot be read: {error}.",
                "Write a copy of the table, and read that.",
                path=shown(self.paths),
            ) from error
        return super()._read_schemas(schemas)

    def describe(self) -> dict[str, Any]:
        """Add the table and its version, and the earlier ones of a run that went on."""
        details = self.manifest.details
        grown = {"earlier": list(self.earlier), "key": self.key} if self.earlier else {}
        described = {**super().describe(), **grown}
        return {**described, "table": details["table"], "version": details["version"]}

    def __repr__(self) -> str:
        known = self._manifest
        version = self.version if known is None else known.details["version"]
        shards = "" if known is None else f", shards={len(known)}"
        return f"{self._kind}({shown(self.paths)!r}, {self.version_name}={version}{shards})"

    def _as_saved(self, described: Mapping[str, Any], how: str = "saved") -> TableFiles:
        """Return the source at the version of a state, or for a run that goes on from there."""
        saved, earlier = described.get("version"), tuple(described.get("earlier", ()))
        details = self.manifest.details
        version, newest = self.version, details["version"]
        if saved is None or described.get("table") != details["table"]:
            return self
        later = how == "later" and saved != newest
        if later:
            version, earlier = newest, (*earlier, saved)
        elif how == "before" or version is None:
            version = saved
        if (version, earlier) == (newest, self.earlier):
            return self
        if version != saved and not later:
            return self  # another version was named
        if how == "saved" and newest != saved:
            logger.warning(
                "%s has the version %s now; the run continues with its version %s "
                '(load_state_dict(allow={"source"}) goes on with the later one).',
                shown(self.paths), newest, saved,
            )  # fmt: skip
        copied = copy.copy(self)
        copied.version, copied.earlier, copied._manifest, copied._lines = version, earlier, None, {}
        copied.key = self.key or described.get("key")
        return copied

    def _leaves(self) -> list[str]:
        return [*super()._leaves(), "exclude"]

    def _deleted_rows(self) -> Mapping[int, NDArray[np.int64]]:
        """See `streampack.exclusion.mask.DeletedRows`."""
        masked: Mapping[int, NDArray[np.int64]] = self.manifest.details["masked"]
        return masked

    def _line(self, seed: int | None) -> ShardOrder:
        bounds = self.manifest.details["bounds"]
        if seed not in self._lines and len(bounds) > 2:
            from streampack.formats.tables.grown import order_of

            self._lines = {**dict([*self._lines.items()][-1:]), seed: order_of(self, seed)}
        return super()._line(seed)

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Sequence[LinePart]:
        shares = getattr(epoch, "shares", None)  # see `streampack.formats.tables.grown`
        if shares is None:
            return super().lanes(n, seed=seed, epoch=epoch, shuffle=shuffle)
        parts = shares(self, n)
        return [self._span(*part, seed=seed, epoch=epoch, shuffle=shuffle) for part in parts]

    def _parts_after(self, parts: Any, cursor: Mapping[str, Any]) -> Any:
        if not self.earlier:
            return parts
        from streampack.formats.tables.grown import GrownParts

        return GrownParts(parts, len(self.earlier), cursor)

    # ------------------------------------------------------------------ rows of a file

    def path_fields(self, path: str, columns: Collection[str] = ()) -> PathFields | None:
        """Return None: partitions are columns of the table."""
        return None

    @property
    def wanted_columns(self) -> list[str]:
        """Add the names that columns had before, as older files have them."""
        wanted, details = super().wanted_columns, self._manifest and self._manifest.details
        names = details["rows"].columns.names if details else {}
        return list(dict.fromkeys([*wanted, *(n for name in wanted for n in names.get(name, ()))]))

    def _columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns to read from a file of this schema."""
        columns = self._rows.columns.of_file(schema)
        wanted = super()._columns(self._rows.columns.schema)
        return [columns[name] for name in wanted if name in columns]

    @contextmanager
    def open_rows(self, file: StoredFile, shard: int) -> Iterator[OpenRows]:
        with super().open_rows(file, shard) as opened:
            view = self._rows.view(shard, opened.schema)
            wanted = super()._columns(view.schema)
            yield opened._replace(
                schema=view.schema,
                read=lambda *part: (view.rows(*rows, wanted) for rows in opened.read(*part)),
            )
