"""Tables of a run that went on with later versions: listing, order of shards, parts of lanes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streampack.deals.spans import EqualParts, LanePart, Parts
from streampack.documents.blocks import offsets_of
from streampack.errors import StateError, StorageError
from streampack.file_info import shown
from streampack.formats.parquet.footer import read_footer
from streampack.formats.parquet.positions import open_file
from streampack.formats.rows.schemas import DAMAGE
from streampack.formats.tables.growth import FileRows, Line
from streampack.formats.tables.snapshot import Columns, DataFile
from streampack.packing.rng import permutation
from streampack.sources.base import Cursor
from streampack.sources.manifest import ShardOrder
from streampack.threads import in_threads

if TYPE_CHECKING:
    from streampack.formats.tables.source import Snapshot, TableFiles

logger = logging.getLogger(__name__)


def grown_line(source: TableFiles, snapshot: Snapshot) -> tuple[Snapshot, Line]:
    """Return the snapshot, and the line of a run that began with the first of `source.earlier`.

    Raises:
        StateError: the run cannot go on; the error has the reason.
    """
    first, *_ = source.earlier
    began = source._snapshot(first)
    line = Line.of(began.files)
    rows = _file_rows(source, snapshot.columns)
    for previous, version in pairwise((*source.earlier, snapshot.version)):
        later = snapshot if version == snapshot.version else source._snapshot(version)
        before = sum(map(len, line.masked.values())), len(line.files)
        line.grow(source._history(first, previous, later), rows)
        logger.info(
            "%s, version %s: %d files are added, and %d rows deleted.",
            shown(source.paths), version, len(line.files) - before[1],
            sum(map(len, line.masked.values())) - before[0],
        )  # fmt: skip
    live = {file.info.path for file in snapshot.files}
    _check_files(source, [file for file in line.files if file.info.path not in live])
    return snapshot, line


def _check_files(source: TableFiles, files: list[DataFile]) -> None:
    """Raise `StateError` if any of these files is gone."""

    def size(file: DataFile) -> int | None:
        try:
            return source.storage.size(file.info.path)
        except StorageError as error:
            if error.failure != "missing":
                raise
            return None

    for file, size_now in zip(files, in_threads(size, files), strict=True):
        if size_now != file.info.num_bytes:
            raise StateError(
                f"The run began before {shown(file.info.path)} was replaced in the table, and the "
                f"file {'has expired' if size_now is None else 'is another one now'}.",
                "Keep files of old versions for as long as a run needs them (VACUUM and the expiry "
                "of snapshots remove them); start a new run.",
                setting="source",
                path=shown(file.info.path),
            )


def _file_rows(source: TableFiles, columns: Columns) -> FileRows:
    counts: dict[str, int] = {}

    def count(file: DataFile) -> int:
        path = file.info.path
        if path not in counts:
            footer = read_footer(source.storage, file.info)
            if footer.rows < 0:
                raise _unreadable(path, footer.problem)
            counts[path] = footer.rows
        return counts[path]

    def keys(file: DataFile, rows: NDArray[np.int64]) -> pa.Array:
        path = file.info.path
        try:
            with source.storage.open(file.info) as stored, open_file(stored) as opened:
                values = _keys(source.key, columns, file, opened)
        except DAMAGE as error:
            raise _unreadable(path, str(error)[:200]) from error
        if values is None:
            raise StateError(
                f"{shown(path)} replaced or was replaced by other files of the table, and "
                + ("its rows have no ids." if source.key is None else f'has no "{source.key}".'),
                f"Pass key= to {source._kind}, the name of a column with another value in each "
                "row, or start a new run.",
                setting="key",
                path=shown(path),
            )
        taken = values.take(pa.array(rows))
        if taken.null_count:
            raise _not_unique(file, "is null")
        return taken

    def _not_unique(file: DataFile, how: str) -> StateError:
        return StateError(
            f'The key "{source.key or "row id"}" {how} in several rows, one of them in '
            f"{shown(file.info.path)}.",
            "Pass key=, the name of a column with another value in each row, or start a new run.",
            setting="key",
            path=shown(file.info.path),
        )

    differ = partial(_not_unique, how="is equal")
    return FileRows(count, keys, differ, source.key is not None)


def _unreadable(path: str, problem: str) -> StateError:
    return StateError(
        f"{shown(path)}, which a run began with or goes on with, cannot be read: {problem}.",
        "Restore the file, or start a new run.",
        path=shown(path),
    )


def _keys(
    key: str | None, columns: Columns, file: DataFile, opened: Any
) -> pa.Array | pa.ChunkedArray | None:
    """Return the keys of all rows of a file, by a column or the ids of rows; None without any."""
    schema = opened.schema_arrow
    if key is None:
        if columns.row_ids is None or file.first_row_id is None:
            return None
        numbered = pa.array(np.arange(opened.metadata.num_rows) + file.first_row_id)
        if columns.row_ids not in schema.names:
            return numbered
        stored = opened.read([columns.row_ids], use_threads=False).column(0)
        return pc.coalesce(stored.cast(pa.int64()), numbered)
    name = columns.of_file(schema).get(key)
    if name is None:
        return None
    kind = columns.schema.field(key).type
    if pa.types.is_string(kind):
        kind = pa.large_string()
    values = opened.read([name], use_threads=False).column(0)
    return values if pa.types.is_null(kind) else values.cast(kind)


def order_of(source: TableFiles, seed: int | None) -> ShardOrder:
    """Return the order of an epoch: the shards of each version after the ones of before."""
    manifest, bounds = source.manifest, source.manifest.details["bounds"]
    parts = []
    for low, high in pairwise(bounds):
        part = np.arange(low, high, dtype=np.int32)
        if seed is not None:
            part = part[permutation(high - low, seed)]
        parts.append(part)
    shards = np.concatenate(parts)
    shards = shards[manifest.weights[shards] > 0]
    return ShardOrder(shards, offsets_of(manifest.weights[shards]))


class _Epoch(int):
    """An epoch of the shards that one version added."""

    version: int

    def shares(self, source: TableFiles, n: int) -> list[tuple[int, int]]:
        """Return the part [low, high) of the line of each of n lanes."""
        manifest, bounds = source.manifest, source.manifest.details["bounds"]
        first, weight = (
            int(manifest.weights[low:high].sum())
            for low, high in ((0, bounds[self.version]), bounds[self.version : self.version + 2])
        )
        ends = [first + lane * weight // n for lane in range(n + 1)]
        return [*pairwise(ends)]


@dataclass(slots=True)
class GrownParts(Parts):
    """Equal shares of every epoch of a table that grew, for a lane.

    A lane reads its share of the first version's shards, and then the ones of later versions. The
    shards of a version are read from the epoch on in which the lane was when they were added.

    Attributes:
        parts: shares of the first version's shards.
        first: (V,) ascending: first epoch of each later version's shards.
    """

    parts: EqualParts
    first: list[int]

    def __init__(self, parts: EqualParts, versions: int, cursor: Mapping[str, Any]) -> None:
        self.parts = parts
        self.first = list(cursor.get(GROWN, [0] * versions))

    def place(self, number: int) -> tuple[int, int]:
        """Return the epoch and the index of the version of a part."""
        before = 0
        for version, epoch in enumerate(self.first):
            begin = before + (epoch - self._epoch(version)) * (version + 1)
            if number < begin:
                return self._of(number - before, version)
            before = begin
        return self._of(number - before, len(self.first))

    def _epoch(self, version: int) -> int:
        return self.first[version - 1] if version else 0

    def _of(self, number: int, version: int) -> tuple[int, int]:
        epoch, place = divmod(number, version + 1)
        return self._epoch(version) + epoch, place

    def part(self, number: int) -> LanePart | None:
        """See `Parts`."""
        epoch = _Epoch(self.place(number)[0])
        epoch.version = self.place(number)[1]
        part = self.parts.part(epoch)
        return part and replace(part, epoch=int(epoch))

    def entries(self, number: int) -> dict[str, Any]:
        """See `Parts`."""
        return {**self.parts.entries(self.place(number)[0]), GROWN: list(self.first)}

    def read_another(self, number: int, empty: int) -> bool:
        """See `Parts`; another lane's shares are read after an epoch without documents."""
        epoch, _ = self.place(number)
        in_epoch = sum(first <= epoch for first in self.first) + 1
        if self.place(number + 1)[0] == epoch or empty < in_epoch:
            return True
        return self.parts.read_another(number, empty // (len(self.first) + 1))


#: Entry of a cursor: the first epoch of each later version's shards.
GROWN = "grown"


def grown_cursor(cursor: Cursor, reached: Cursor, versions: int, epochs: int | None) -> Cursor:
    """Return a cursor for a stream that goes on with the next version.

    Args:
        cursor: a cursor of the stream.
        reached: the latest cursor of it.
        versions: number of versions after the first that the stream had so far.
        epochs: epochs of the run; None is endless.
    """
    epoch = reached["epoch"] if epochs is None else min(reached["epoch"], epochs - 1)
    return {**cursor, GROWN: [*cursor.get(GROWN, [0] * versions), epoch]}
