"""List remote files: URLs, folders and patterns of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from streampack.errors import ConfigError, StorageError
from streampack.storage.file_info import FileInfo, shown, split_url
from streampack.storage.folders import Entries, Folders, join
from streampack.storage.listing import folder_files, pattern_files
from streampack.storage.marks import marks_among
from streampack.storage.matching import has_glob
from streampack.storage.remote import Pace, info_from, look_up
from streampack.storage.retries import with_retries
from streampack.storage.threads import in_threads

MANY_NAMES = 256  # in one folder, from which on the folder is listed


class RemoteFolders(Folders):
    """Folders of a store, by URLs.

    Args:
        filesystem: fsspec file system.
        retries: attempts of each call after the first.
    """

    def __init__(self, filesystem: Any, retries: int | None) -> None:
        super().__init__()
        self._filesystem, self._retries = filesystem, retries

    def _is_folder(self, path: str) -> bool:
        # A store lists the siblings of a missing folder.
        return bool(self._ask(path, "info", {}).get("type") == "directory")

    def _list(self, folder: str) -> Entries:
        items = self._ask(folder, "ls", [], detail=True)
        root = self._root(folder)
        entries: dict[str, FileInfo | None] = {}
        for item in items:
            path = item["name"].rstrip("/")
            name = path.rpartition("/")[2]
            if name and path + "/" != root:  # a file, or the folder itself, is its own content
                is_file = item.get("type") == "file"
                entries[name] = info_from(join(folder, name), item) if is_file else None
        return entries

    def _walk(self, folder: str, enters: Callable[[str], bool]) -> dict[str, FileInfo]:
        root = self._root(folder)
        infos = {}
        for path, item in self._ask(folder, "find", {}, detail=True).items():
            if item.get("type") == "file":
                name = path.removeprefix(root)
                inside = path.startswith(root)
                url = join(folder, name) if inside else self._filesystem.unstrip_protocol(path)
                infos[name] = info_from(url, item)
        marked = {join(folder, top) if top else folder: m for top, m in marks_among(infos).items()}
        self.marked |= marked
        return infos

    def _root(self, folder: str) -> str:
        return str(self._filesystem._strip_protocol(folder)).rstrip("/") + "/"

    def _ask(self, folder: str, method: str, missing: Any, **options: Any) -> Any:
        call = partial(getattr(self._filesystem, method), folder, **options)
        try:
            return with_retries(call, doing="Listing", url=folder, retries=self._retries)
        except StorageError as error:
            if error.failure == "missing":
                return missing
            raise


def list_remote(
    filesystem: Any,
    names: Sequence[str],
    endings: Sequence[str],
    *,
    pace: Pace,
    retries: int | None,
) -> list[list[FileInfo]]:
    """Return the files of each of these URLs without braces; an empty list for no file.

    Args:
        filesystem: file system of the URLs' protocol.
        names: files, directories or globs.
        endings: endings of the files to take from directories.
        pace: time limits of looking up one file. A listing has many answers and no limit.
        retries: attempts of each call after the first.

    Raises:
        ConfigError: a wildcard over HTTP, or a folder is not a corpus by itself; see `marks`.
        StorageError: a call failed after all retries.
    """
    folders = RemoteFolders(filesystem, retries)
    over_http = split_url(names[0])[0] in ("http", "https")
    counts = Counter(_folder(name) for name in names)
    globs = {_folder(name) for name in names if has_glob(name)}
    listed = {
        folder for folder, n in counts.items() if folder and (n >= MANY_NAMES or folder in globs)
    }
    if not over_http:
        in_threads(folders.names, sorted(listed))

    def find(name: str) -> list[FileInfo]:
        folder, _, base = name.rpartition("/")
        if not over_http and folder in listed and (info := folders.names(folder).get(base)):
            return [info]
        files: list[FileInfo] = []
        if not over_http and has_glob(name):
            files = pattern_files(folders, name, name[: name.index("://") + 3])
        files = files or _list_named(filesystem, folders, name, endings, pace, retries)
        if over_http and not files and "*" in name.partition("?")[0]:
            raise ConfigError(
                f'"{shown(name)}" has a wildcard, which HTTP servers do not list.',
                "Name the files, or use braces: shard-{000..127}.parquet.",
                path=shown(name),
            )
        return files

    return in_threads(find, names)


def _folder(name: str) -> str:
    """Return the folder to list for the last component of a URL, or ""."""
    folder, _, base = name.rpartition("/")
    plain = folder and not folder.endswith("/") and not has_glob(folder)
    return folder if plain and base and base != "**" else ""


def _list_named(
    filesystem: Any,
    folders: RemoteFolders,
    url: str,
    endings: Sequence[str],
    pace: Pace,
    retries: int | None,
) -> list[FileInfo]:
    """Return the files of a literal URL: a file, the files of a directory, or none."""
    try:
        info = look_up(filesystem, url, pace=pace, retries=retries)
    except StorageError as error:
        if error.failure == "missing":
            return []
        raise
    if info.get("type") != "directory":
        return [info_from(url, info)]
    return folder_files(folders, url.rstrip("/"), endings)
