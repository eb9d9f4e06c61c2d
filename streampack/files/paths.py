"""Choose the source of files, by their names and content."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Sequence
from typing import Any

from streampack.errors import ConfigError
from streampack.file_info import FileInfo, shown
from streampack.job.listed_once import listed_once
from streampack.names.listing import has_ending
from streampack.sources.base import Source
from streampack.sources.formats import FORMATS, Format
from streampack.sources.reading import ReadOptions
from streampack.storage.storage import Storage as Storage
from streampack.storage.storage import default_storage

#: Arguments of `sources.open` that a format may need.
_NAMED = ("text", "tokens", "loss_mask", "dtype", "eos_id")

_LONGEST_PATH = 4096
# A dataset's name, with or without its owner.
_ON_THE_HUB = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_NAME = re.compile(r"[^\s<>\"|]*(/|\\|\.\w{1,8}$)[^\s<>\"|]*")  # excludes markup such as "</s>"


def seems_path(text: str) -> bool:
    """Return True if a string may be a path, URL or pattern: by its ending, or without blanks."""
    if not text or len(text) > _LONGEST_PATH or not text.isprintable():
        return False
    known = _format_of(text) is not None or _NAME.fullmatch(text) is not None
    return known or is_there(text)


def is_there(path: str) -> bool:
    """Return True for a local file or folder, or the prefix of an indexed dataset."""
    return os.path.exists(path) or os.path.exists(f"{path}.idx")


def open_files(
    paths: str | Sequence[str],
    *,
    reading: ReadOptions | None = None,
    storage: Storage | None = None,
    formats: Sequence[str] = tuple(FORMATS),
    **options: Any,
) -> Source:
    """Open files of any format as a source, by their names and content.

    One process of a job inspects them, and the others receive its result.

    Args:
        paths: a file, folder, glob or URL, or several of one format.
        reading, storage: limits of blocks and open shards; access to files and their cache.
        formats: names of the accepted formats.
        options: arguments of `sources.open`; None counts as left out.

    Raises:
        ConfigError: there is no file, the files have several formats or an unknown one, or an
            argument is missing or not accepted by the format.
    """
    storage = default_storage() if storage is None else storage
    several = [paths] if isinstance(paths, str) else list(paths)
    refuse_pipes(several)
    options = {name: value for name, value in options.items() if value is not None}
    described = {
        "look": several,
        "given": options,
        "formats": [*formats],
        "storage": storage.storage_options,
    }
    known = listed_once(described, lambda: _look(several, storage, formats, options))
    source: Source = known.load()(several, **options, reading=reading, storage=storage)
    return source


def _look(
    paths: list[str], storage: Storage, formats: Sequence[str], arguments: dict[str, Any]
) -> Format:
    """Return the format of the files; raise `ConfigError` unless it takes the given arguments."""
    known = _one_format(paths, storage, [FORMATS[name] for name in formats])
    takes = inspect.signature(known.load()).parameters if arguments else {}
    for name, value in arguments.items():
        if name not in takes:
            named = [option for option in _NAMED if option in takes]
            raise ConfigError(
                f"{known.name} does not accept {name}, got {name}={value!r}.",
                remedy=f"It takes {', '.join(named) or 'no such argument'}.",
                setting=name,
            )
    return known


def _format_of(path: str) -> Format | None:
    """Return the format with the ending of this path; None if there is none."""
    return next((known for known in FORMATS.values() if has_ending(path, known.endings)), None)


def _one_format(paths: list[str], storage: Storage, wanted: Sequence[Format]) -> Format:
    """Return the format of the files at `paths`, by their names or else by a listing."""
    first: dict[Format, str] = {}
    indexed_format, mds = FORMATS["MegatronIndexed"], FORMATS["MDS"]
    for path in paths:
        path_format = None if os.path.isdir(path) else _format_of(path)
        if _is_indexed(path, storage):
            path_format = indexed_format
        if path_format is not None and path_format in wanted:
            first.setdefault(path_format, path)
            continue
        listed: dict[Format | None, str] = {}
        try:
            names = {file.path for file in _files(path, storage)}
        except ConfigError as error:
            from streampack.files.tables import table_at

            first.setdefault(table_at(path, error, wanted), path)
            continue
        for known in FORMATS.values():
            if known.beside and any(has_ending(name, known.endings) for name in names):
                names = {name for name in names if not has_ending(name, known.beside)}
        for name in sorted(names):
            indexed = has_ending(name, (".bin",)) and f"{name[:-4]}.idx" in names
            listed.setdefault(indexed_format if indexed else _format_of(name), name)
        if mds in wanted and mds in listed:  # because other files may stand beside an index
            listed = {mds: listed[mds]}
        if not set(listed) & set(wanted):
            endings = ", ".join(ending for known in wanted for ending in known.endings[:1])
            other = listed.get(None, next(iter(listed.values())))
            from streampack.files.text_tables import converted_by_pyarrow

            raise ConfigError(
                f'"{shown(path)}" must name files of a supported format, got {shown(other)}.',
                remedy=converted_by_pyarrow(other)
                or f"Name files that end in {endings} or the like, or pass a source of "
                "streampack.sources.",
                path=shown(path),
            )
        for known in set(wanted).intersection(listed):
            first.setdefault(known, listed[known])
    if len(first) > 1:
        shown_files = ", ".join(sorted(map(shown, first.values()))[:3])
        raise ConfigError(
            f"{_words(paths)} names files of {len(first)} kinds that can be read here "
            f"({shown_files}).",
            'Use a pattern that names one kind, such as "folder/*.jsonl", or a sources.Mixture of '
            "several sources.",
            setting="source",
        )
    (known,) = first
    return known


def _files(path: str, storage: Storage) -> list[FileInfo]:
    try:
        return storage.list(path)
    except ConfigError as error:
        if _ON_THE_HUB.fullmatch(path) and not os.path.exists(path):
            raise ConfigError(
                error.fact,
                f'Check the path; a dataset of the Hub is datasets.load_dataset("{path}", '
                'split="train").',
                path=path,
            ) from error
        raise


def _is_indexed(path: str, storage: Storage) -> bool:
    """Return True for a `.bin` with a `.idx` beside it, and for the prefix of both."""
    if has_ending(path, (".bin",)):
        try:
            return bool(storage.list(f"{path[:-4]}.idx"))
        except ConfigError:
            return False
    return not os.path.exists(path) and is_there(path)


def _words(paths: list[str]) -> str:
    return f'"{shown(paths[0])}"' + (f" with {len(paths) - 1} more" if paths[1:] else "")


def is_pipe(path: str) -> bool:
    """Return True for a `pipe:` URL."""
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
