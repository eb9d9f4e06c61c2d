"""What a user writes to name files: brace expansions, globs, directories, endings."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from streampack.arguments import type_in_words
from streampack.errors import ConfigError
from streampack.storage.remote import shown

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
                "This source reads files.",
                "Pass paths. Texts, ids or records in memory go to PackedDataset themselves, "
                "conversations to sources.Chat(records).",
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
