"""Listing remote files, with as few calls as possible.

An object store lists a thousand objects with their sizes per call, so many names in one folder are
looked up in its listing, and a few names with one call each. HTTP has no listing: every file is
looked up with its own call.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from streampack.errors import ConfigError, StorageError
from streampack.storage.patterns import has_glob, wanted
from streampack.storage.remote import (
    FileInfo,
    Pace,
    look_up,
    shown,
    split_url,
    with_retries,
)

T = TypeVar("T")
R = TypeVar("R")

MANY_NAMES = 256  # in one folder: with so many or more, the folder is listed


def in_threads(function: Callable[[T], R], items: Iterable[T], threads: int = 16) -> list[R]:
    """``[function(item) for item in items]``, with up to `threads` calls at the same time."""
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    results: list[R] = []
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        for start in range(0, len(items), 4096):  # a million waiting calls would take a gigabyte
            results += pool.map(function, items[start : start + 4096])
    return results


def list_remote(
    filesystem: Any, names: Sequence[str], endings: Sequence[str], *, pace: Pace, retries: int
) -> list[list[FileInfo]]:
    """The files that each of these URLs without braces names; an empty list if there are none.

    Args:
        filesystem: of the URLs' protocol.
        names: files, directories or globs.
        endings: from directories, take only names that end in one of these.
        pace: of looking up one file. A listing may take as long as its many answers take.
        retries: attempts of each call after the first.

    Raises:
        ConfigError: a wildcard over HTTP.
        StorageError: a call failed after all retries.
    """
    over_http = split_url(names[0])[0] in ("http", "https")
    for name in names:
        if over_http and "*" in name.partition("?")[0]:
            raise ConfigError(
                f'"{shown(name)}" has a wildcard.',
                "HTTP servers have no listing that it could be matched against.",
                "Name the files, or use braces: shard-{000..127}.parquet.",
            )
    folders: dict[str, dict[str, FileInfo]] = {}
    if not over_http:
        counts = Counter(map(_folder, names))
        globs = {_folder(name) for name in names if has_glob(name)}
        chosen = [
            folder
            for folder, count in counts.items()
            if folder and (count >= MANY_NAMES or folder in globs)
        ]
        listed = in_threads(lambda folder: _list_folder(filesystem, folder, retries), chosen)
        folders = dict(zip(chosen, listed, strict=True))

    def find(name: str) -> list[FileInfo]:
        if (there := folders.get(_folder(name))) is not None:
            base = name.rpartition("/")[2]
            if has_glob(base):
                return [there[found] for found in fnmatch.filter(there, base)]
            if base in there:
                return [there[base]]
        if over_http or not has_glob(name):
            return _list_named(filesystem, name, endings, pace, retries)
        matches = with_retries(
            lambda: filesystem.glob(name, detail=True), doing="Listing", url=name, retries=retries
        )
        return [
            FileInfo.of(filesystem.unstrip_protocol(match), info)
            for match, info in matches.items()
            if info.get("type") == "file"
        ]

    return in_threads(find, names)


def _folder(name: str) -> str:
    """The folder whose listing shows what `name` means; "" if that takes more than one."""
    folder, _, base = name.rpartition("/")
    plain = folder and not folder.endswith("/") and not has_glob(folder)
    return folder if plain and base and "**" not in base and "[" not in base else ""


def _list_folder(filesystem: Any, folder: str, retries: int) -> dict[str, FileInfo]:
    """The files directly in a folder, by their names in it."""
    try:
        items = with_retries(
            lambda: filesystem.ls(folder, detail=True), doing="Listing", url=folder, retries=retries
        )
    except StorageError as error:
        if error.failure == "missing":
            return {}
        raise
    root = filesystem._strip_protocol(folder).rstrip("/") + "/"
    files = [i for i in items if i.get("type") == "file" and i["name"].startswith(root)]
    names = [item["name"].removeprefix(root) for item in files]
    return {n: FileInfo.of(f"{folder}/{n}", i) for n, i in zip(names, files, strict=True)}


def _list_named(
    filesystem: Any, url: str, endings: Sequence[str], pace: Pace, retries: int
) -> list[FileInfo]:
    """What a URL without wildcards names: a file, a directory or nothing."""
    try:
        info = look_up(filesystem, url, pace=pace, retries=retries)
    except StorageError as error:
        if error.failure == "missing":
            return []
        raise
    if info.get("type") != "directory":
        return [FileInfo.of(url, info)]
    below = with_retries(
        lambda: filesystem.find(url, detail=True), doing="Listing", url=url, retries=retries
    )
    root = filesystem._strip_protocol(url).rstrip("/") + "/"
    return [
        FileInfo.of(filesystem.unstrip_protocol(name), item)
        for name, item in below.items()
        if item.get("type") == "file" and wanted(name.removeprefix(root), endings)
    ]
