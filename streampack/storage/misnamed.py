"""What is wrong with the names of files: nothing is there, or something is there twice."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from streampack.errors import ConfigError
from streampack.storage.decompression import CODEC_OF_ENDING
from streampack.storage.patterns import has_ending
from streampack.storage.remote import shown

logger = logging.getLogger(__name__)

_ONCE = (
    "Every file is read once per epoch.",
    "Name it once. To read all files several times, pass epochs= to PackedDataset; to read some "
    'more often than others, sources.Mixture({"a": ..., "b": ...}, epochs={"a": 3}).',
)


def nothing_there(name: str, endings: Sequence[str], *, local: bool) -> ConfigError:
    """The error for a path or pattern that names nothing."""
    listed = endings and not has_ending(name, endings)  # a folder, or a pattern of folders
    kinds = f" that ends in {' or '.join(endings)}" if listed else ""
    others = " or ".join(f'"{other}"' for other in (_alike(name) if local else []))
    slash = re.match(r"([a-z][\w+-]+):/(?=[^/])", name) if local else None
    if slash is not None:
        remedy = f'Did you mean "{slash[1]}://{name[slash.end() :]}"? A URL has two slashes there.'
    elif local:
        remedy = f"Did you mean {others}? " if others else ""
        remedy += "Check the path; relative paths start at the working directory."
    else:
        remedy = "Check the URL: the bucket or host, and every folder in it."
    fact = f'No file{kinds} matches "{shown(name)}".'
    folder = name.removeprefix("file://")
    if local and os.path.isdir(folder) and not os.listdir(folder):
        fact, remedy = f'The folder "{shown(name)}" is empty.', "Put files in it, or name another."
    return ConfigError(fact, "Its documents would be missing.", remedy)


def _alike(path: str) -> list[str]:
    """Names beside a local path that is missing which look like it, at most two."""
    folder, name = os.path.split(path)
    try:
        return difflib.get_close_matches(name, os.listdir(folder or "."), 2)
    except OSError:
        return []


def refuse_repeated(names: Sequence[str]) -> None:
    """Raise `ConfigError` if one of the names is there more than once."""
    for name, times in sorted(Counter(names).items()):
        if times > 1:
            raise ConfigError(f'"{shown(name)}" is named {times} times.', *_ONCE)


def found_twice(first: str, then: str, path: str) -> ConfigError:
    """The error for a file that two patterns name, or the braces of one name twice."""
    both = f'"{shown(first)}" and "{shown(then)}" both name {shown(path)}.'
    again = f'"{shown(then)}" names {shown(path)} more than once.'
    return ConfigError(both if first != then else again, *_ONCE)


def refuse_linked(paths: Iterable[str]) -> None:
    """Raise `ConfigError` if a local path is a link to a file or folder that is there as well."""
    seen: dict[tuple[int, int], str] = {}
    for path in paths:
        if "://" in path:
            continue
        try:
            status = os.stat(path)
        except (OSError, ValueError):  # whoever reads it says what is wrong
            continue
        first = seen.setdefault((status.st_dev, status.st_ino), path)
        if first != path and os.path.realpath(first) == os.path.realpath(path):
            raise ConfigError(f'"{first}" and "{path}" are one, by a link.', *_ONCE)


def log_twins(paths: Sequence[str]) -> None:
    """Say in the log if a file is there both compressed and as it is: a.jsonl.gz and a.jsonl."""
    codecs = tuple(CODEC_OF_ENDING)
    plain = {path.rpartition(".")[0]: path for path in paths if path.endswith(codecs)}
    twins = [path for path in paths if path in plain]
    if twins:
        logger.warning(
            "%s and %s are both read%s: if they hold the same documents, name one of them.",
            shown(twins[0]), shown(plain[twins[0]]),
            f", and {len(twins) - 1} more such pairs" if twins[1:] else "",
        )  # fmt: skip
