"""List remote files: URLs, folders and patterns of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from streampack.errors import ConfigError, StorageError
from streampack.file_info import FileInfo, shown, split_url
from streampack.names.folders import Entries, Folders, join
from streampack.names.listing import folder_files, has_ending, pattern_files
from streampack.names.marks import marks_among
from streampack.names.matching import has_glob
from streampack.remote.catalogs import Catalog, Elsewhere
from streampack.remote.versions import info_from
from streampack.threads import in_threads

MANY_NAMES = 256  # in one folder, from which on the folder is listed


class RemoteFolders(Folders):
    """Folders of a store, by URLs.

    Args:
        catalog: names in the store.
        retries: attempts of each call after the first.
    """

    def __init__(self, catalog: Catalog, retries: int | None) -> None:
        super().__init__(retries)
        self._catalog = catalog

    def below(self, folder: str, enters: Callable[[str], bool]) -> dict[str, FileInfo]:
        looks: list[Callable[[], Any]] = [
            partial(self._walk, folder, enters), partial(self._look_above, folder)
        ]  # fmt: skip
        infos: dict[str, FileInfo] = in_threads(lambda look: look(), looks)[0]
        return infos

    def _is_folder(self, path: str) -> bool:
        return bool(self._ask(path, lambda: self._catalog.is_folder(path), False))

    def _list(self, folder: str) -> Entries:
        return dict(self._inside(folder, deep=False))

    def _walk(self, folder: str, enters: Callable[[str], bool]) -> dict[str, FileInfo]:
        infos = {name: info for name, info in self._inside(folder, deep=True) if info is not None}
        marked = {join(folder, top) if top else folder: m for top, m in marks_among(infos).items()}
        self.marked |= marked
        return infos

    def _inside(self, folder: str, *, deep: bool) -> Iterator[tuple[str, FileInfo | None]]:
        inside = partial(self._catalog.inside, folder, deep=deep)
        for name, item in self._ask(folder, lambda: list(inside()), []):
            url = str(name) if isinstance(name, Elsewhere) else join(folder, name)
            yield name, None if item is None else info_from(url, item)

    def files(self, names: Sequence[str], endings: Sequence[str]) -> list[list[FileInfo]]:
        """Return the files of each of these URLs without braces; an empty list for no file.

        Args:
            names: files, directories or globs.
            endings: endings of the files to take from directories.

        Raises:
            ConfigError: a wildcard over HTTP, or a folder is not a corpus by itself; see `marks`.
            StorageError: a call failed after all retries.
        """
        is_web = split_url(names[0])[0] in ("http", "https")
        counts = Counter(map(_folder, names))
        globs = {_folder(name) for name in names if has_glob(name)}
        many = {folder for folder, n in counts.items() if n >= MANY_NAMES}
        listed = set() if is_web else (many | globs) - {""}
        in_threads(self.names, sorted(listed))

        def find(name: str) -> list[FileInfo]:
            folder, _, base = name.rpartition("/")
            if folder in listed and (info := self.names(folder).get(base)):
                return [info]
            files: list[FileInfo] = []
            if has_glob(name) and not is_web:
                files = pattern_files(self, name, name[: name.index("://") + 3])
            files = files or self._named(name, endings, is_web)
            if is_web and not files and "*" in name.partition("?")[0]:
                raise ConfigError(
                    f'"{shown(name)}" has a wildcard, which HTTP servers do not list.',
                    "Name the files, or use braces: shard-{000..127}.parquet.",
                    path=shown(name),
                )
            return files

        return in_threads(find, names)

    def _named(self, url: str, endings: Sequence[str], is_web: bool) -> list[FileInfo]:
        """Return the files of a literal URL: a file, the files of a directory, or none.

        A name without an ending is first taken for a folder: one listing tells its files and marks.
        """

        def listed() -> list[FileInfo]:
            return folder_files(self, url.rstrip("/"), endings)

        def named() -> list[FileInfo]:
            info = self._ask(url, lambda: self._catalog.info(url), None, "Looking up")
            if info is None:
                return []
            return listed() if info.get("type") == "directory" else [info_from(url, info)]

        base = url.rstrip("/").rpartition("/")[2]
        if is_web or (has_ending(base, endings) if endings else "." in base):
            return named() or listed()
        try:
            return listed() or named()
        except StorageError as error:  # rights for files need not be rights for listings
            if error.failure == "denied" and (files := named()):
                return files
            raise


def _folder(name: str) -> str:
    """Return the folder to list for the last component of a URL, or ""."""
    folder, _, base = name.rpartition("/")
    plain = folder and not folder.endswith("/") and not has_glob(folder)
    return folder if plain and base and base != "**" else ""
