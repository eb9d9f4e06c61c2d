"""What a user writes to name files, and listing them with as few calls as possible.

An object store lists a thousand objects with their sizes per call, so many names in one folder are
looked up in its listing, and a few names with one call each. HTTP has no listing: every file is
looked up with its own call.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from streampack.arguments import type_in_words
from streampack.errors import ConfigError, StorageError
from streampack.storage.remote import (
    FileInfo,
    Pace,
    look_up,
    shown,
    split_url,
    with_retries,
)

_RANGE = re.compile(r"(\d+)\.\.(\d+)\Z")


def named_paths(paths: str | Path | Iterable[str | Path]) -> list[str]:
    """What a user passed as one path or several, as a list.

    Raises:
        ConfigError: it is something else, such as records.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    listed = list(several) if isinstance(several, Iterable) else [several]
    for path in listed:
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigError(
                f"A path was expected, and {path!r:.80} is {type_in_words(path)}.",
                "Pass paths; texts, ids or records in memory go to PackedDataset, conversations to "
                "sources.Chat(records).",
                setting="paths",
            )
    return list(map(str, listed))


def refuse_repeated(paths: Iterable[str]) -> None:
    """Raise `ConfigError` if a path is there more than once: a file is read once per epoch."""
    for path, times in sorted(Counter(paths).items()):
        if times > 1:
            raise ConfigError(
                f'"{shown(path)}" is named {times} times.',
                remedy="Name it once; `epochs` of PackedDataset or of sources.Mixture reads it "
                "several times.",
                path=shown(path),
            )


def expand_braces(pattern: str) -> Iterator[str]:
    """``a{00..11}b`` and ``{x,y}``, as a shell expands them; braces without either stay.

    Groups may be nested and there may be several; the last one varies fastest.
    """
    opening = pattern.find("{")
    while opening >= 0:
        closing, commas = _group(pattern, opening)
        inner = pattern[opening + 1 : closing]
        numbers = _RANGE.match(inner) if closing >= 0 else None
        if closing >= 0 and (commas or numbers):
            edges = [opening, *commas, closing]
            choices: Sequence[str] = [pattern[a + 1 : b] for a, b in pairwise(edges)]
            if numbers:
                choices = _numbers(*numbers.groups())
            for choice in choices:
                for middle in expand_braces(choice):
                    for end in expand_braces(pattern[closing + 1 :]):
                        yield pattern[:opening] + middle + end
            return
        opening = pattern.find("{", opening + 1)
    yield pattern


def _group(pattern: str, opening: int) -> tuple[int, list[int]]:
    """Where the group that opens here closes (-1: nowhere), and the commas at its own level."""
    depth = 0
    commas: list[int] = []
    for i in range(opening, len(pattern)):
        if pattern[i] == "{":
            depth += 1
        elif pattern[i] == "}":
            depth -= 1
            if depth == 0:
                return i, commas
        elif pattern[i] == "," and depth == 1:
            commas.append(i)
    return -1, []


def _numbers(first: str, last: str) -> list[str]:
    padded = any(len(end) > 1 and end.startswith("0") for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    low, high = int(first), int(last)
    step = 1 if high >= low else -1
    return [str(i).zfill(width) for i in range(low, high + step, step)]


def has_glob(path: str) -> bool:
    """True if the path contains ``*``, ``?`` or ``[``."""
    return any(character in path for character in "*?[")


def has_ending(path: str, endings: Sequence[str]) -> bool:
    """True if a path, or the path in an HTTP URL, ends in one of these; case does not matter.

    Args:
        path: local, or a URL.
        endings: in lower case. One that begins with a slash is a whole name: "/index.json".
    """
    if path.startswith(("http://", "https://")):
        path = path.partition("?")[0]
    name = path.rstrip("/").rpartition("/")[2]
    return f"/{name.lower()}".endswith(tuple(endings))


def wanted(relative: str, endings: Sequence[str]) -> bool:
    """True if a file found in a directory is meant: by its ending, and not hidden.

    Names that begin with a dot or an underscore are what other tools put beside the data.
    """
    hidden = any(part.startswith((".", "_")) for part in relative.split("/"))
    return not hidden and (not endings or has_ending(relative, endings))


def local_names(pattern: str) -> list[str]:
    """The names that a local pattern stands for: itself if it exists, else what its braces say."""
    expanded = os.path.expanduser(pattern)
    return [expanded] if os.path.exists(expanded) else list(expand_braces(expanded))


def local_files(name: str, endings: Sequence[str]) -> list[str]:
    """Absolute paths of the files that a name without braces stands for, in no certain order."""
    if os.path.isdir(name):
        root = Path(os.path.abspath(name))
        return [
            str(file)
            for file in root.rglob("*")
            if file.is_file() and wanted(file.relative_to(root).as_posix(), endings)
        ]
    # A name that exists is that file, whatever characters it has.
    matches = [name] if os.path.exists(name) else glob.glob(name, recursive=True)
    found = [os.path.abspath(match) for match in matches if os.path.isfile(match)]
    return [path for path in found if "**" not in name or not _comes_back(path)]


def _comes_back(path: str) -> bool:
    """True if a link on the way leads to a folder that the way has passed already."""
    passed = set()
    folder = ""
    for part in Path(path).parent.parts:
        folder = os.path.join(folder, part)
        real = os.path.realpath(folder)
        if real in passed:
            return True
        passed.add(real)
    return False


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
                f'"{shown(name)}" has a wildcard, which HTTP servers do not list.',
                "Name the files, or use braces: shard-{000..127}.parquet.",
                path=shown(name),
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


def is_pipe(path: str) -> bool:
    """True for a `pipe:` URL."""
    return path.startswith("pipe:")


def refuse_pipes(paths: Sequence[str]) -> None:
    """Raise `ConfigError` if one of the paths is a `pipe:` URL."""
    for path in filter(is_pipe, paths):
        raise ConfigError(
            f'"{path}" is a pipe: URL, which would run a command.',
            "Name the shards by URL (s3://, https://, ...), or, if the command is yours, pass "
            f"sources.WebDataset({path!r}, ..., allow_pipe=True).",
            setting="allow_pipe",
            path=path,
        )


def run_pipe(url: str, target: Path) -> None:
    """Write what a `pipe:` URL yields to a file; webdataset runs the command.

    Raises:
        ConfigError: webdataset is not installed.
        StorageError: the command failed.
    """
    try:
        from webdataset.gopen import gopen
    except ImportError as error:
        raise ConfigError(
            "webdataset is not installed.",
            'Install it with `pip install "streampack[webdataset]"`.',
            path=url,
        ) from error
    try:
        with gopen(url, "rb") as stream, open(target, "wb") as out:
            shutil.copyfileobj(stream, out)
    except OSError as error:
        raise StorageError(
            f"{url} failed: {error}.", "Run the command by hand to see why.", path=url
        ) from error
