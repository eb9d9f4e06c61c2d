"""Local and remote folders, as patterns list them; each folder is listed once."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from streampack.errors import StorageError
from streampack.file_info import FileInfo
from streampack.names.marks import MARKS
from streampack.remote.retries import with_retries

#: Names in a folder: a file, or None for a folder.
Entries = Mapping[str, "FileInfo | None"]


class Folders(ABC):
    """Folders of one file system.

    Args:
        retries: attempts of each call after the first.

    Attributes:
        marked: names of marks by folder, for listed folders and folders above them; see `marks`.
    """

    def __init__(self, retries: int | None = None) -> None:
        self._retries = retries
        self.marked: dict[str, str] = {}
        self._names: dict[str, Entries] = {}
        self._seen: set[str] = set()
        self._above: set[str] = set()

    def names(self, folder: str) -> Entries:
        """Return the direct contents of a folder by name; empty if it does not exist."""
        if folder not in self._names:
            self._names[folder] = self._list(folder)
        return self._names[folder]

    def entries(self, folder: str) -> Entries:
        """Return the direct contents of a folder for a pattern, and record its marks."""
        entries = self.names(folder)
        if folder not in self._seen:
            self._seen.add(folder)
            self._look_above(folder)
            for name in MARKS.keys() & entries.keys():
                self._look_for(folder, name)
        return entries

    def below(self, folder: str, enters: Callable[[str], bool]) -> dict[str, FileInfo]:
        """Return all files in a folder and below it, by their paths relative to it.

        Args:
            folder: path or URL.
            enters: called with the name of a folder on the way; False allows to leave it out.
        """
        self._look_above(folder)
        return self._walk(folder, enters)

    def _look_above(self, folder: str) -> None:
        """Record a mark if a folder lies in a table, as its partition or its data folder."""
        above, _, name = folder.rpartition("/")
        if not above or above.endswith("/") or above in self._above:
            return
        self._above.add(above)
        self._look_for(above, "_delta_log")
        if "=" in name:
            self._look_for(above, ".hoodie")
        if name == "data":
            self._look_for(above, "metadata")
        name = above.rpartition("/")[2]
        if name == "data" or "=" in name:  # a partition, or the folder of all of them
            self._look_above(above)

    def _look_for(self, folder: str, mark: str) -> None:
        try:
            inside = join(folder, mark)
            names = self._list(inside) if self._is_folder(inside) else {}
        except StorageError as error:  # the user did not name that folder, and may lack access
            if error.failure == "transient":
                raise
            return
        if any(fnmatchcase(name, MARKS[mark]) for name in names):
            self.marked[folder] = mark

    def _ask(self, url: str, call: Callable[[], Any], missing: Any, doing: str = "Listing") -> Any:
        try:
            return with_retries(call, doing=doing, url=url, retries=self._retries)
        except StorageError as error:
            if error.failure == "missing":
                return missing
            raise

    @abstractmethod
    def _is_folder(self, path: str) -> bool: ...

    @abstractmethod
    def _list(self, folder: str) -> Entries: ...

    @abstractmethod
    def _walk(self, folder: str, enters: Callable[[str], bool]) -> dict[str, FileInfo]: ...


def join(folder: str, name: str) -> str:
    """Return the path or URL of a name in a folder."""
    return f"{folder}{name}" if folder.endswith("/") else f"{folder}/{name}"


def _leads_nowhere(item: os.DirEntry[str]) -> bool:
    """Return True for a dangling link to a file, judged by name; `real_files` refuses to read it.

    Otherwise a file that was moved or removed behind the link would be missing silently.
    """
    return item.is_symlink() and "." in item.name and not os.path.exists(item.path)


def _contents(folder: str) -> Entries:
    entries: dict[str, FileInfo | None] = {}
    with os.scandir(folder) as items:
        for item in items:
            with suppress(FileNotFoundError):  # removed meanwhile
                leads_nowhere = _leads_nowhere(item)
                if leads_nowhere or item.is_file():
                    size = item.stat(follow_symlinks=not leads_nowhere).st_size
                    entries[item.name] = FileInfo(item.path, size)
                elif item.is_dir():
                    entries[item.name] = None
    return entries


class LocalFolders(Folders):
    """Local folders, by absolute paths.

    A folder that links reach by several paths is walked once, by a path without links if there is
    one.
    """

    def _is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def _list(self, folder: str) -> Entries:
        entries: Entries = self._ask(folder, lambda: _contents(folder), {})
        return entries

    def _walk(self, folder: str, enters: Callable[[str], bool]) -> dict[str, FileInfo]:
        infos: dict[str, FileInfo] = {}
        walked: set[str] = set()
        waiting, links = [""], list[str]()
        while waiting or links:
            relative = (waiting or links).pop()
            path = join(folder, relative) if relative else folder
            real = os.path.realpath(path)
            if real in walked:
                continue
            walked.add(real)
            for name, info in sorted(self.entries(path).items(), reverse=True):
                inner = f"{relative}/{name}" if relative else name
                if info is not None:
                    infos[inner] = info
                elif enters(name):
                    is_link = os.path.islink(join(path, name))
                    (links if is_link else waiting).append(inner)
        return infos
