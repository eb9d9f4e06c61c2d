"""The log of a Delta table: its files and columns at a version, and the changes of a commit.

The log is a folder with a file of JSON lines per commit, and now and then a checkpoint, a Parquet
file with the state at a version. Deletions, renamed columns and the rest are features of the
protocol, by name; a reader that lacks one must not read the table. Only features that are
implemented, or that leave reading as it is, are accepted here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from streampack.errors import ConfigError
from streampack.file_info import FileInfo, shown
from streampack.formats.tables.growth import Commit
from streampack.storage.storage import Storage
from streampack.threads import in_threads

#: Features of a reader that are implemented, or that change nothing for reading.
FEATURES = frozenset({"deletionVectors", "timestampNtz", "vacuumProtocolCheck"})
#: Features that are refused only where the table uses them.
_USED = ("columnMapping", "v2Checkpoint")

_FILE = re.compile(
    r"(\d{20})\.(?:(?P<commit>json)|checkpoint\.parquet"
    r"|checkpoint\.(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet"
    r"|checkpoint\.(?P<second>[0-9a-fA-F-]{36})\.(?:json|parquet))$"
)
_ACTIONS = ("add", "remove", "metaData", "protocol", "sidecar", "checkpointMetadata")

Action = Mapping[str, Any]


@dataclass(slots=True)
class LogState:
    """A table's state at a version.

    Attributes:
        files: the actions `add` of its files, by path and deletion vector.
        metadata, protocol: the latest actions of these names.
    """

    files: dict[tuple[str, str], Action]
    metadata: Action
    protocol: Action

    def apply(self, actions: Iterable[Action]) -> None:
        """Apply the actions of a commit, or of a checkpoint."""
        actions = list(actions)
        for action in actions:
            if removed := action.get("remove"):
                self._remove(*file_key(removed))
        for action in actions:
            if added := action.get("add"):
                self.files[file_key(added)] = added
            self.metadata = action.get("metaData") or self.metadata
            self.protocol = action.get("protocol") or self.protocol

    def _remove(self, path: str, vector: str) -> None:
        """Remove a file, with any deletion vector if the action names none that it has."""
        if self.files.pop((path, vector), None) is None and not vector:
            for key in [key for key in self.files if key[0] == path]:
                del self.files[key]


@dataclass(slots=True)
class LogChanges:
    """The changes of consecutive commits, as paths in the log.

    Attributes:
        commits: the changes, in order.
        last: the action `add` of each file that was removed, as it was before.
    """

    commits: list[Commit]
    last: dict[str, Action]


def changes_of(began: LogState, commits: Iterable[tuple[int, list[Action]]]) -> LogChanges:
    """Return the changes of the commits after a state."""
    files = {path: action for (path, _), action in began.files.items()}
    changes = LogChanges([], {})
    for _, actions in commits:
        added = {unquote(a["add"]["path"]): a["add"] for a in actions if a.get("add")}
        removed = {unquote(a["remove"]["path"]) for a in actions if a.get("remove")} - added.keys()
        removed &= files.keys()
        changed = {
            path
            for path in added.keys() & files.keys()
            if file_key(added[path]) != file_key(files[path])
        }
        same = not any(
            each.get("dataChange", True) for each in filter(None, map(_file_action, actions))
        )
        changes.commits.append(Commit(removed, added.keys() - files.keys(), changed, same))
        changes.last.update({path: files.pop(path) for path in removed})
        files.update(added)
    return changes


def file_key(action: Action) -> tuple[str, str]:
    """Return the identity of a file in a log: its path and its deletion vector."""
    vector = action.get("deletionVector")
    name = "" if vector is None else f"{vector['storageType']}{vector['pathOrInlineDv']}"
    offset = None if vector is None else vector.get("offset")
    return unquote(action["path"]), name if offset is None else f"{name}@{offset}"


class DeltaLog:
    """The log of a table.

    Args:
        storage: access to its files.
        root: path or URL of the table.

    Raises:
        ConfigError: there is no log.
    """

    def __init__(self, storage: Storage, root: str) -> None:
        self.storage, self.root = storage, root
        self.commits: dict[int, FileInfo] = {}
        self._checkpoints: dict[int, dict[int, FileInfo]] = {}  # parts by version
        self._parts: dict[int, int] = {}
        self._second: set[int] = set()
        for info in storage.list(f"{root}/_delta_log"):
            if (match := _FILE.search(info.path)) is None:
                continue
            version = int(match[1])
            if match["commit"]:
                self.commits[version] = info
            elif match["second"]:
                self._second.add(version)
            else:
                self._checkpoints.setdefault(version, {})[int(match["part"] or 1)] = info
                self._parts[version] = int(match["parts"] or 1)
        if not self.commits and not self._checkpoints:
            raise ConfigError(
                f"{shown(root)} is not a Delta table: its folder _delta_log has no commit.",
                "Check the path; it is the folder that has _delta_log in it.",
                path=shown(root),
            )

    @property
    def newest(self) -> int:
        """The newest version."""
        return max(*self.commits, *self._checkpoints, -1, -1)

    def state(self, version: int) -> LogState:
        """Return the state at a version.

        Raises:
            ConfigError: the version does not exist or is no longer in the log; the log is damaged;
                or the table uses a feature that is not supported.
        """
        whole = [v for v, p in self._checkpoints.items() if len(p) == self._parts[v]]
        begin = max((v for v in whole if v <= version), default=-1)
        commits = range(begin + 1, version + 1)
        if version > self.newest:
            self._refuse_version(version, [])
        if missing := [v for v in commits if v not in self.commits]:
            self._refuse_version(version, missing)
        state = LogState({}, {}, {})
        if begin >= 0:
            parts = self._checkpoints[begin]
            read = in_threads(self._checkpoint, [parts[part] for part in sorted(parts)])
            state.apply(action for actions in read for action in actions)
        for actions in in_threads(self.commit, commits):
            state.apply(actions)
        self._check_protocol(state)
        return state

    def commit(self, version: int) -> list[Action]:
        """Return the actions of a commit.

        Raises:
            ConfigError: the commit is missing or damaged.
        """
        info = self.commits.get(version)
        if info is None:
            self._refuse_version(version, [version])
        assert info is not None
        data = self.storage.read_range(info, 0, info.num_bytes)
        try:
            actions = [json.loads(line) for line in data.splitlines() if line.strip()]
            for action in filter(None, map(_file_action, actions)):
                file_key(action)  # raises if it has no path
            return actions
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(info, error) from error

    def _checkpoint(self, info: FileInfo) -> list[Action]:
        data = self.storage.read_range(info, 0, info.num_bytes)
        try:
            file = pq.ParquetFile(pa.BufferReader(data))
            columns = [name for name in _ACTIONS if name in file.schema_arrow.names]
            actions = list(_actions(file, [name for name in columns if name != "remove"]))
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(info, error) from error
        if any("sidecar" in action or "checkpointMetadata" in action for action in actions):
            raise self.unsupported("checkpoints of version 2 (v2Checkpoint)")
        return actions

    def _check_protocol(self, state: LogState) -> None:
        protocol, settings = state.protocol, state.metadata.get("configuration") or {}
        settings = dict(settings)
        if not protocol or not state.metadata:
            raise ConfigError(
                f"The log of {shown(self.root)} has no protocol or no metadata, so it is damaged.",
                "Restore the log.",
                path=shown(self.root),
            )
        version = int(protocol.get("minReaderVersion") or 1)
        features = set(protocol.get("readerFeatures") or ())
        if version > 3:
            raise self.unsupported(f"version {version} of the protocol for readers")
        if settings.get("delta.columnMapping.mode", "none") != "none":
            raise self.unsupported("renamed or dropped columns (columnMapping)")
        if unknown := sorted(features - FEATURES - {*_USED}):
            raise self.unsupported(f"the feature {', '.join(unknown)}")

    def unsupported(self, feature: str) -> ConfigError:
        """Return the error for a feature that this reader lacks."""
        return ConfigError(
            f"{shown(self.root)} is a Delta table with {feature}, which is not supported.",
            "Write a copy without it and read that: deltalake.write_deltalake(copy, table.scan()).",
            path=shown(self.root),
        )

    def _refuse_version(self, version: int, missing: list[int]) -> None:
        if version > self.newest:
            fact = f"{shown(self.root)} has no version {version}; its newest one is {self.newest}."
        elif self._second:
            raise self.unsupported("checkpoints of version 2 (v2Checkpoint)")
        else:
            fact = (
                f"Version {version} of {shown(self.root)} is no longer in its log, which lacks "
                f"commit {missing[0]}."
            )
        raise ConfigError(
            fact,
            f"Pass a version that it has, such as {self.newest}, or leave version= out.",
            setting="version",
            path=shown(self.root),
        )

    def _damaged(self, info: FileInfo, error: Exception) -> ConfigError:
        return ConfigError(
            f"{shown(info.path)} is damaged: {str(error)[:200]}.",
            "Restore the file, which belongs to the log of the table.",
            path=shown(info.path),
        )


def _file_action(action: Action) -> Action | None:
    return action.get("add") or action.get("remove")


def _actions(file: pq.ParquetFile, columns: list[str]) -> Iterator[Action]:
    """Yield the actions of a checkpoint, each a dict with one name."""
    for batch in file.iter_batches(columns=columns, use_threads=False):
        for name in columns:
            column = batch.column(name)
            for action in column.filter(column.is_valid()).to_pylist():
                for field in ("partitionValues", "configuration"):
                    if isinstance(action.get(field), list):  # a map of Arrow
                        action[field] = dict(action[field])
                yield {name: action}
