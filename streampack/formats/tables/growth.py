"""Growth: the files and deleted rows of a run that goes on with a later version of its table.

The run keeps the files of its first version. Every commit since then is one of these:
  - An append adds files, which are read after the ones of before.
  - A compaction writes the rows of some files to others. It is passed over: the run reads the files
    of before.
  - Deleted rows, by a deletion vector or with a whole file, are masked.
  - A rewrite (an update, a merge, a delete without deletion vectors) replaces files, and a commit
    does not tell which rows of the new ones are new. Their keys do. A row with the key of a row
    that was replaced is the same document, and is read as it was. New rows are read from the new
    file, and rows are masked if their key is gone.

Files that one commit replaced by others form a component, with the files that replaced these later.
Keys are read of components with a rewrite; if they are of a column, and rows were deleted, also of
added files, since an update may be a commit that deletes rows and another one that adds them.

Cost: the log of the commits; of these files the column of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streampack.formats.tables.snapshot import DataFile

Rows = NDArray[np.int64]
_NO_ROWS: Rows = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Commit:
    """The changes of a version, as paths of files.

    Attributes:
        removed, added: files that the version lacks, and files that only it and later ones have.
        changed: files that stayed, with other deleted rows.
        same: True if the rows of the table stayed the same.
    """

    removed: Collection[str]
    added: Collection[str]
    changed: Collection[str]
    same: bool


@dataclass(frozen=True, slots=True)
class History:
    """The changes of a table from the first version of a run to a later one.

    Attributes:
        commits: the changes, in order.
        live: the files of the later version by path.
        last: returns a file that was removed, as it was before.
    """

    commits: Sequence[Commit]
    live: Mapping[str, DataFile]
    last: Callable[[str], DataFile]


@dataclass(frozen=True, slots=True)
class FileRows:
    """Access to the rows of data files.

    Attributes:
        count: returns the number of rows of a file.
        keys: returns the keys of rows (K,) of a file, as an Arrow array without nulls; raises
            `StateError` if they have none.
        differ: returns the error for two rows with one key.
        by_key: True if keys are of a column, so that an inserted row may have the key of a deleted
            one; ids of rows do not return.
    """

    count: Callable[[DataFile], int]
    keys: Callable[[DataFile, Rows], pa.Array]
    differ: Callable[[DataFile], Exception]
    by_key: bool


@dataclass(slots=True)
class Line:
    """The shards of a run.

    Attributes:
        files: data files, with the rows that are never read.
        masked: rows that were deleted later, by shard.
        bounds: number of shards at each version of the run, beginning with 0.
    """

    files: list[DataFile]
    masked: dict[int, Rows] = field(default_factory=dict)
    bounds: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> Line:
        """Return the line of a first version."""
        line = cls(list(files))
        line.bounds = [0, len(line.files)]
        return line

    def only(self, kept: Sequence[bool]) -> Line:
        """Return the line with these of its shards."""
        numbers = np.flatnonzero(kept).tolist()
        bounds = np.searchsorted(numbers, self.bounds).tolist()
        masked = {new: self.masked[old] for new, old in enumerate(numbers) if old in self.masked}
        return Line([self.files[number] for number in numbers], masked, bounds)

    def grow(self, history: History, rows: FileRows) -> None:
        """Add the new rows of a later version, and mask the rows that it lacks, no others."""
        by_path: dict[str, list[int]] = {}
        self.masked = {}
        for shard, file in enumerate(self.files):
            by_path.setdefault(file.info.path, []).append(shard)
        grown = [
            _Grown(self.files, history, rows, by_path, component)
            for component in _components(history, by_path)
        ]
        for each in grown:
            each.collect()
        if rows.by_key and grown:
            everything = grown[0]
            for each in grown[1:]:
                everything.moved += each.moved
                everything.others += each.others
            grown[1:] = []
        added: list[DataFile] = []
        for each in grown:
            added += each.compare()
            self.masked |= {shard: masked for shard, masked in each.masks.items() if len(masked)}
        self.files += sorted(added, key=lambda file: file.info.path)
        self.bounds.append(len(self.files))


def deleted_of(file: DataFile) -> Rows:
    """Return the deleted rows of a file."""
    return _NO_ROWS if file.deleted is None else file.deleted


@dataclass(slots=True)
class _Component:
    """Files of which some replaced others.

    Attributes:
        paths: their paths.
        derived: files that replaced others, at any time.
        kept: True if all rows stayed the same, but for rows that were deleted before.
    """

    paths: set[str]
    derived: set[str] = field(default_factory=set)
    kept: bool = True


def _components(history: History, known: Collection[str]) -> list[_Component]:
    """Return the components of all files that are known, were added or are there now."""
    of_path = {path: _Component({path}) for path in known}
    for commit in history.commits:
        before = [*commit.removed, *commit.changed]
        for path in (*before, *commit.added):
            of_path.setdefault(path, _Component({path}))
        if commit.added and before:
            joined = _Component(set())
            for each in {
                id(c): c for c in map(of_path.__getitem__, (*before, *commit.added))
            }.values():
                joined.paths |= each.paths
                joined.derived |= each.derived
                joined.kept &= each.kept
            joined.derived |= set(commit.added)
            joined.kept &= commit.same
            of_path.update(dict.fromkeys(joined.paths, joined))
        else:
            for path in commit.removed:
                of_path[path].kept = False
    return list({id(component): component for component in of_path.values()}.values())


@dataclass(slots=True)
class _Grown:
    """The growth of the files of one component.

    Attributes:
        moved: rows of shards that were deleted, unless a file of `others` has them.
        others: files with rows to read, where `moved` has them not; None is all rows.
        masks: rows to mask, by shard.
    """

    files: Sequence[DataFile]
    history: History
    rows: FileRows
    known: Mapping[str, Sequence[int]]
    component: _Component
    moved: list[tuple[int, Rows]] = field(default_factory=list)
    others: list[tuple[DataFile, Rows | None]] = field(default_factory=list)
    masks: dict[int, Rows] = field(default_factory=dict)

    def collect(self) -> None:
        """Collect the rows that were deleted, and the ones that may be new."""
        live, component, last = self.history.live, self.component, self.history.last
        derived = [live[path] for path in sorted(component.derived) if path in live]
        kept = component.kept and bool(component.derived)
        kept = kept and not any(len(deleted_of(file)) for file in derived)
        for path in sorted(component.paths):
            if path in self.known:
                self._of_known(path, kept)
            elif path not in component.derived and (path in live or kept):
                self.others.append((live[path] if path in live else last(path), None))
        if not kept:
            self.others += [(file, self._unread(file)) for file in derived]

    def _of_known(self, path: str, kept: bool) -> None:
        shards, live = self.known[path], self.history.live
        lacks = {shard: deleted_of(self.files[shard]) for shard in shards}
        if path not in live and not kept:
            count = self.rows.count(self.files[shards[0]])
            self.moved += [(shard, _but(count, lacks[shard])) for shard in shards]
            return
        file = live[path] if path in live else self.history.last(path)
        self.moved += [(shard, np.setdiff1d(deleted_of(file), lacks[shard])) for shard in shards]
        if path in live and path not in self.component.derived:  # rows that were restored
            restored = np.setdiff1d(self._lacks(path), deleted_of(file))
            self.others.append((file, restored))

    def compare(self) -> list[DataFile]:
        """Mask the moved rows that no other file has; return the files with the new rows."""
        moved = [(shard, rows) for shard, rows in self.moved if len(rows)]
        others = [(file, rows) for file, rows in self.others if rows is None or len(rows)]
        compared = self.rows.by_key or any(
            file.info.path in self.component.derived for file, _ in others
        )
        if not (moved and others and compared):
            self.masks.update(moved)
            return [self._part(file, rows) for file, rows in others]
        before = [self.rows.keys(self.files[shard], rows) for shard, rows in moved]
        new = [(file, self._unread(file) if rows is None else rows) for file, rows in others]
        after = [self.rows.keys(file, rows) for file, rows in new]
        for keys, file in ((before, self.files[moved[0][0]]), (after, new[0][0])):
            everything = pa.chunked_array(keys)
            if len(pc.unique(everything)) != len(everything):
                raise self.rows.differ(file)
        then, now = pa.chunked_array(before), pa.chunked_array(after)
        for (shard, rows), keys in zip(moved, before, strict=True):
            stays = pc.is_in(keys, value_set=now).to_numpy(zero_copy_only=False)
            self.masks[shard] = rows[~stays]
        added = []
        for (file, rows), keys in zip(new, after, strict=True):
            is_known = pc.is_in(keys, value_set=then).to_numpy(zero_copy_only=False)
            if not is_known.all():
                added.append(self._part(file, rows[~is_known]))
        return added

    def _part(self, file: DataFile, rows: Rows | None) -> DataFile:
        """Return a file of which only these rows are read; None is all that are not deleted."""
        return file if rows is None else replace(file, deleted=_but(self.rows.count(file), rows))

    def _unread(self, file: DataFile) -> Rows:
        """Return the rows of a file that are there now and that no shard of the run reads."""
        rows = _but(self.rows.count(file), deleted_of(file))
        if file.info.path not in self.known:
            return rows
        return np.intersect1d(rows, self._lacks(file.info.path))

    def _lacks(self, path: str) -> Rows:
        """Return the rows of a known file that no shard of the run reads."""
        first, *others = (deleted_of(self.files[shard]) for shard in self.known[path])
        for rows in others:
            first = np.intersect1d(first, rows)
        return first


def _but(count: int, rows: Rows) -> Rows:
    """Return the rows [0, count) without these."""
    others = np.ones(count, dtype=np.bool_)
    others[rows] = False
    return np.flatnonzero(others)
