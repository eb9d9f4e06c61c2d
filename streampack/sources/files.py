"""The source that paths stand for, by the names of their files and what these hold."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from streampack.errors import ConfigError
from streampack.reading.base import Source
from streampack.reading.fields import usual_field
from streampack.reading.options import Reading
from streampack.sources.arrow.source import Arrow
from streampack.sources.jsonl.source import JSONL
from streampack.sources.mds.files import normal_folder
from streampack.sources.mds.index import parse_index
from streampack.sources.mds.source import MDS
from streampack.sources.megatron.source import MegatronIndexed
from streampack.sources.parquet.source import Parquet
from streampack.sources.tar.source import WebDataset
from streampack.sources.text.source import TextFiles
from streampack.sources.tokens.source import Tokens
from streampack.storage.patterns import has_ending
from streampack.storage.remote import shown
from streampack.storage.storage import FileInfo, Storage

__all__ = ["DOCUMENT_FORMATS", "is_there", "open_files", "seems_path"]

#: Formats of which nothing but text or ids need be chosen.
DOCUMENT_FORMATS: tuple[Any, ...] = (Parquet, JSONL, Arrow, TextFiles)
#: Formats of which nothing need be chosen here.
_COMPLETE_FORMATS: tuple[Any, ...] = (TextFiles, MegatronIndexed, Tokens)
#: Asked in this order: an MDS index ends in ".json" as well.
_FORMATS: tuple[Any, ...] = (MDS, WebDataset, *DOCUMENT_FORMATS, MegatronIndexed, Tokens)

#: What Hugging Face's library writes beside the Arrow files of a dataset.
_OF_DATASETS = ("/dataset_dict.json", "/dataset_info.json", "/state.json")
_KEYS = ("npy", "txt", "json")  # of tar members, in the order in which they are preferred
_PEEKED = 64  # members of a tar shard that are looked at
_LONGEST_PATH = 4096
_NAME = re.compile(r"[^\s]*(/|\\|\.\w{1,8}$)[^\s]*")


def seems_path(text: str) -> bool:
    """True if a string can be meant as a path, URL or pattern: by its ending, or without blanks."""
    if not text or len(text) > _LONGEST_PATH or not text.isprintable():
        return False
    return (
        _format_of(text) is not None
        or re.match(r"\w[\w+.-]*://", text) is not None
        or _NAME.fullmatch(text) is not None
        or is_there(text)
    )


def is_there(path: str) -> bool:
    """True for a local file or folder, or the prefix of an indexed dataset."""
    return os.path.exists(path) or os.path.exists(f"{path}.idx")


def open_files(
    paths: str | Sequence[str],
    *,
    text: str | None = None,
    tokens: str | None = None,
    column: str | None = None,
    key: str | None = None,
    reading: Reading | None = None,
    formats: Sequence[Any] = _FORMATS,
) -> Source:
    """The source of files of any format, by their names.

    Args:
        paths: a file, folder, glob or URL, or several of one format.
        text, tokens: field of JSON lines, column of Parquet, or field of JSON inside tar shards.
        column: of MDS; None takes the only column of the index, or the only one with a usual name.
        key: extension of the wanted files inside tar shards; None takes it from the first shard.
        reading: how the files are read.
        formats: those that are wanted.

    Raises:
        ConfigError: no file is there, they have several formats or none that is known, or an
            argument does not go with the format.
    """
    storage = Storage()
    several = [paths] if isinstance(paths, str) else list(paths)
    kept: Any = {"reading": reading, "storage": storage}
    if column is not None:  # HTTP has no listing, and an MDS corpus needs none
        _refuse_others(MDS, text=text, tokens=tokens, key=key)
        return MDS(several, column=column, **kept)
    known = _one_format(several, storage, formats)
    if known is MDS:
        _refuse_others(MDS, text=text, tokens=tokens, key=key)
        folders = _mds_folders(several)
        return MDS(folders, column=_mds_column(folders, storage), **kept)
    if known is WebDataset:
        if key is None:
            fields = text is not None or tokens is not None
            key = "json" if fields else _tar_key(several, storage)
        return WebDataset(several, key=key, text=text, tokens=tokens, **kept)
    _refuse_others(known, key=key)
    if known in _COMPLETE_FORMATS:
        _refuse_others(known, text=text, tokens=tokens)
    else:
        kept |= {"text": text, "tokens": tokens}
    source: Source = known(several, **kept)
    return source


def _format_of(path: str) -> Any:
    """The format whose files have names that end as this path does; None if there is none."""
    return next((known for known in _FORMATS if has_ending(path, known.endings)), None)


def _one_format(paths: list[str], storage: Storage, wanted: Sequence[Any]) -> Any:
    """The format of the files at paths, by their names or else by what is listed there."""
    first: dict[Any, str] = {}
    for path in paths:
        found = None if os.path.isdir(path) else _format_of(path)
        if _is_indexed(path, storage):
            found = MegatronIndexed
        if found in wanted:
            first.setdefault(found, path)
            continue
        listed: dict[Any, str] = {}
        names = {file.path for file in storage.list(path)}
        if any(has_ending(name, Arrow.endings) for name in names):
            names = {name for name in names if not has_ending(name, _OF_DATASETS)}
        for name in sorted(names):
            indexed = has_ending(name, (".bin",)) and f"{name[:-4]}.idx" in names
            listed.setdefault(MegatronIndexed if indexed else _format_of(name), name)
        if MDS in wanted and MDS in listed:  # there may be other files beside an index
            listed = {MDS: listed[MDS]}
        if not set(listed) & set(wanted):
            raise _unknown(path, listed, wanted)
        for known in set(listed) & set(wanted):
            first.setdefault(known, listed[known])
    if len(first) > 1:
        shown_files = ", ".join(sorted(map(shown, first.values()))[:3])
        raise ConfigError(
            f"{_words(paths)} names files of {len(first)} kinds that can be read here "
            f"({shown_files}).",
            "A source has one format.",
            'Use a pattern that names one kind, such as "folder/*.jsonl", or a sources.Mixture of '
            "several sources.",
        )
    (known,) = first
    return known


def _is_indexed(path: str, storage: Storage) -> bool:
    """True for a `.bin` with a `.idx` beside it, and for the prefix of both."""
    if has_ending(path, (".bin",)):
        try:
            return bool(storage.list(f"{path[:-4]}.idx"))
        except ConfigError:
            return False
    return not os.path.exists(path) and is_there(path)


def _unknown(path: str, listed: dict[Any, str], wanted: Sequence[Any]) -> ConfigError:
    names = " or ".join(ending for known in wanted for ending in known.endings[:1])
    calls = ", ".join(known.example([path]) for known in wanted)
    return ConfigError(
        f'"{shown(path)}" names files of no kinds that can be read here '
        f"({', '.join(sorted(map(shown, listed.values()))[:3])}).",
        f"Files are known by names that end in {names}, or the like.",
        f"Rename them, or pass the source of their format: {calls}.",
    )


def _words(paths: list[str]) -> str:
    return f'"{shown(paths[0])}"' + (f" with {len(paths) - 1} more" if paths[1:] else "")


def _refuse_others(known: Any, **arguments: str | None) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise ConfigError(
                f"{name}={value!r} was given, and the files are read by {known.__name__}.",
                "It names nothing there.",
                f"Leave {name} out (--{name} on the command line).",
            )


def _mds_folders(paths: list[str]) -> list[str]:
    for path in paths:
        if has_ending(path, MDS.endings) and not has_ending(path, ("/index.json",)):
            raise ConfigError(
                f'"{shown(path)}" names shards of an MDS corpus.',
                "Which shards there are, and what they hold, is in its index.",
                f"Pass the folder: {path.rpartition('/')[0] or '.'}.",
            )
    return list(dict.fromkeys(normal_folder(path) for path in paths))


def _mds_column(folders: list[str], storage: Storage) -> str:
    where = f"{folders[0]}/index.json"
    size = storage.list(where)[0].num_bytes
    first = next(parse_index(storage.read_range(where, 0, size), where), None)
    return usual_field(
        first.layout.names if first else (),
        f"{shown(where)} lists the columns",
        lambda name: f"sources.MDS({folders[0]!r}, column={name!r}), or --column {name}",
    )


def _tar_key(paths: list[str], storage: Storage) -> str:
    """What the first members of the first shard end in."""
    shard: FileInfo = storage.list(paths[0], endings=WebDataset.endings)[0]
    found: list[str] = []
    try:
        with storage.local(shard.path) as file, tarfile.open(file) as archive:
            for member in archive:
                found.append(PurePosixPath(member.name).name.partition(".")[2].lower())
                if len(found) >= _PEEKED:
                    break
    except (tarfile.TarError, EOFError):  # damaged, or a compression that tarfile lacks
        pass
    keys = [key for key in _KEYS for name in found if name.rsplit(".", 1)[-1] == key]
    named = [name for name in found if keys and name.rsplit(".", 1)[-1] == keys[0]]
    if not named:
        raise ConfigError(
            f"Which of the files in {shown(shard.path)} hold documents is unknown"
            + (f" (they end in {', '.join(sorted(set(found))[:3])})." if found else "."),
            "Only .npy, .txt and .json files can be read without being named.",
            f"Name the extension: {WebDataset.example(paths)} (--key), with yours.",
        )
    return named[0]
