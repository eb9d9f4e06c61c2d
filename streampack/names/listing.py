"""Interpret the paths and patterns of users, and list files with as few calls as possible.

An object store lists a thousand objects with their sizes per call, so many names in one folder are
looked up in its listing, and a few names with one call each. HTTP has no listing: every file is
looked up with its own call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from streampack.arguments import type_in_words
from streampack.errors import ConfigError
from streampack.file_info import FileInfo, shown, split_url
from streampack.names.folders import Folders, LocalFolders, join
from streampack.names.marks import refuse_marked
from streampack.names.matching import HIDDEN, has_glob, matches

if TYPE_CHECKING:
    from streampack.remote.catalogs import Catalog

_CHAINED = re.compile(r"::(\w+://|/|\.)")
#: The first component of a URL, by protocol.
WITH_HOST = {
    **dict.fromkeys(("s3", "s3a", "gs", "gcs"), "bucket"),
    **dict.fromkeys(("az", "abfs", "abfss"), "container"),
    **dict.fromkeys(("http", "https"), "server"),
    "hf": "repository",
}
_RANGE = re.compile(r"(\d+)\.\.(\d+)\Z")


def named_paths(paths: str | Path | Iterable[str | Path]) -> list[str]:
    """Return one path or several as a list.

    Raises:
        ConfigError: `paths` is not a path, but for example records; or a URL names no file.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    listed = list(several) if isinstance(several, Iterable) else [several]
    for path in listed:
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigError(
                f"A path must be a string or PathLike, got {type_in_words(path)}: {path!r:.80}.",
                "Pass paths; texts, ids or records in memory go to PackedDataset, conversations to "
                "sources.Chat(records).",
                setting="paths",
            )
        _refuse_misspelt(str(path))
    return list(map(str, listed))


def _refuse_misspelt(url: str) -> None:
    protocol, path = split_url(url)
    if protocol is None:
        return
    if "::" in protocol or _CHAINED.search(path):
        raise ConfigError(
            f'"{shown(url)}" is a chain of URLs.',
            "Name the files by the last of them, which is cached and decompressed here; unpack "
            "archives other than tar.",
            path=shown(url),
        )
    if protocol in WITH_HOST and path.startswith("/"):
        raise ConfigError(
            f'"{shown(url)}" must name a {WITH_HOST[protocol]} after two slashes, '
            "got three slashes.",
            f'Write "{shown(f"{protocol}://" + path.lstrip("/"))}".',
            path=shown(url),
        )


def refuse_repeated(paths: Sequence[str], files: Sequence[str] | None = None) -> None:
    """Raise `ConfigError` if a file occurs more than once: a file is read once per epoch.

    Args:
        paths: N paths.
        files: N resolved paths, from `real_files`; None compares `paths`.
    """
    first: dict[str, str] = {}
    for path, file in zip(paths, paths if files is None else files, strict=True):
        before = first.setdefault(file, path)
        if before is not path:
            also = "" if before == path else f', as "{shown(before)}" too'
            raise ConfigError(
                f'"{shown(path)}" is named twice{also}.',
                remedy="Name it once; `epochs` of PackedDataset or of sources.Mixture reads it "
                "several times.",
                path=shown(path),
            )


def real_files(paths: Iterable[str], catalog_of: Callable[[str], Catalog]) -> list[str]:
    """Resolve each path or URL to its canonical form, with links followed.

    Raises:
        ConfigError: a path is a dangling link.
    """
    folders: dict[str, str] = {}
    resolved = []
    for path in paths:
        protocol, remainder = split_url(path)
        if protocol is not None:
            resolved.append(catalog_of(protocol).canonical(path))
        elif os.path.islink(remainder):
            resolved.append(os.path.realpath(remainder))
            if not os.path.exists(resolved[-1]):
                raise ConfigError(
                    f'"{path}" is a link to "{resolved[-1]}", which does not exist.',
                    "Restore that file, or remove the link.",
                    path=path,
                )
        else:
            folder, name = os.path.split(remainder)
            if folder not in folders:
                folders[folder] = os.path.realpath(folder)
            resolved.append(os.path.join(folders[folder], name))
    return resolved


def expand_braces(pattern: str) -> Iterator[str]:
    """Expand ``a{00..11}b`` and ``{x,y}`` as a shell does; other braces stay.

    Groups may be nested and there may be several; the last one varies fastest.
    """
    for brace in re.finditer("{", pattern):
        edges = _edges(pattern, brace.start())
        choices: Sequence[str] = [pattern[a + 1 : b] for a, b in pairwise(edges)]
        numbers = _RANGE.match(choices[0]) if len(choices) == 1 else None
        if numbers:
            choices = _numbers(*numbers.groups())
        if numbers or len(choices) > 1:
            for choice in choices:
                for middle in expand_braces(choice):
                    for end in expand_braces(pattern[edges[-1] + 1 :]):
                        yield pattern[: brace.start()] + middle + end
            return
    yield pattern


def _edges(pattern: str, opening: int) -> list[int]:
    """Return the indices of a group's braces and own commas; an empty list if nothing closes it."""
    depth, edges = 0, list[int]()
    for i in range(opening, len(pattern)):
        depth += (pattern[i] == "{") - (pattern[i] == "}")
        if depth == 0 or i == opening or (pattern[i] == "," and depth == 1):
            edges.append(i)
        if depth == 0:
            return edges
    return []


def _numbers(first: str, last: str) -> list[str]:
    padded = any(len(end) > 1 and end.startswith("0") for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    low, high = int(first), int(last)
    step = 1 if high >= low else -1
    return [str(i).zfill(width) for i in range(low, high + step, step)]


def has_ending(path: str, endings: Sequence[str]) -> bool:
    """Return True if a path, or the path of an HTTP URL, has one of the endings, in any case.

    Args:
        path: local path or URL.
        endings: endings in lower case. A leading slash makes an ending a whole name:
            "/index.json".
    """
    if path.startswith(("http://", "https://")):
        path = path.partition("?")[0]
    name = path.rstrip("/").rpartition("/")[2]
    return f"/{name.lower()}".endswith(tuple(endings))


def wanted(relative: str, endings: Sequence[str]) -> bool:
    """Return True if a file in a directory is data: it has an ending and is not hidden.

    Other tools use names with a leading dot or underscore for files beside the data.
    """
    hidden = any(part.startswith(HIDDEN) for part in relative.split("/"))
    return not hidden and (not endings or has_ending(relative, endings))


def local_names(pattern: str) -> list[str]:
    """Return the names of a local pattern: itself if it exists, else its brace expansion."""
    expanded = os.path.expanduser(pattern)
    return [expanded] if os.path.exists(expanded) else list(expand_braces(expanded))


def list_local(names: Sequence[str], endings: Sequence[str]) -> list[list[FileInfo]]:
    """Return the files of each of these names without braces, in any order.

    Raises:
        ConfigError: a folder is not a corpus by itself; see `marks`.
    """
    folders = LocalFolders()

    def find(name: str) -> list[FileInfo]:
        path = os.path.abspath(name)
        if os.path.isdir(path):
            return folder_files(folders, path, endings)
        if os.path.exists(path):  # an existing name is literal, even with wildcards
            return [FileInfo(path, os.path.getsize(path))]
        return pattern_files(folders, path, "/") if has_glob(path) else []

    return [find(name) for name in names]


def folder_files(folders: Folders, folder: str, endings: Sequence[str]) -> list[FileInfo]:
    """Return the data files in a folder and below it."""
    below = folders.below(folder, lambda name: wanted(name, ()))
    files = [info for name, info in below.items() if wanted(name, endings)]
    refuse_marked(files, folders.marked, folder)
    return files


def pattern_files(folders: Folders, pattern: str, top: str) -> list[FileInfo]:
    """Return the files of a path or URL with wildcards; `top` is its fixed leading folder."""
    components = pattern.removeprefix(top).split("/")
    literal = next(i for i, component in enumerate(components) if has_glob(component))
    folder = join(top, "/".join(components[:literal])) if literal else top
    files = list(matches(folders, folder, components[literal:]))
    refuse_marked(files, folders.marked, folder)
    return files
