"""The source that a path on the command line stands for, by its files or by a fingerprint."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from streampack.conversion.text_files import TextFiles
from streampack.errors import ConfigError
from streampack.reading.base import Source
from streampack.reading.options import Reading
from streampack.reading.sharded import ShardedSource
from streampack.sources.chat.source import Chat
from streampack.sources.infer import format_of
from streampack.sources.jsonl.source import JSONL
from streampack.sources.mds.files import normal_folder
from streampack.sources.mds.index import parse_index
from streampack.sources.mds.source import MDS
from streampack.sources.parquet.source import Parquet
from streampack.sources.tar.source import WebDataset
from streampack.storage.patterns import has_ending
from streampack.storage.storage import FileInfo, Storage

__all__ = ["open_corpus", "open_documents", "reopen_corpus"]

_KEYS = ("npy", "txt", "json")  # of tar members, in the order in which they are preferred
_COLUMNS = ("tokens", "input_ids", "text")  # of MDS, the same
_PEEKED = 64  # members of a tar shard that are looked at


def open_corpus(
    path: str,
    *,
    text: str | None = None,
    tokens: str | None = None,
    column: str | None = None,
    key: str | None = None,
) -> Source:
    """The source at `path`: MDS, tar, Parquet, JSON lines or text files, by their names.

    Args:
        path: a file, folder, glob or URL.
        text, tokens: field of JSON lines, column of Parquet, or field of JSON inside tar shards.
        column: of MDS; None takes the only column of the index, or one with a usual name.
        key: extension of the wanted files inside tar shards; None takes it from the first shard.

    Raises:
        ConfigError: no file is there, they have several formats or none that is known, or a flag
            does not go with the format.
    """
    storage = Storage()
    if column is not None:  # HTTP has no listing, and an MDS corpus needs none
        _refuse_others("--column", "MDS", text=text, tokens=tokens, key=key)
        return MDS(path, column=column, storage=storage)
    known, file = _format_at(path, storage, (MDS, WebDataset, Parquet, JSONL, TextFiles))
    if known is MDS:
        _refuse_others("MDS shards", "--column", text=text, tokens=tokens, key=key)
        return MDS(path, column=_mds_column(normal_folder(path), storage), storage=storage)
    if known is WebDataset:
        if key is None:
            fields = text is not None or tokens is not None
            key = "json" if fields else _tar_key(file, storage)
        return WebDataset(path, key=key, text=text, tokens=tokens, storage=storage)
    _refuse_others("These files", "--text or --tokens", key=key)
    return open_documents(path, text=text, tokens=tokens)


def open_documents(path: str, *, text: str | None = None, tokens: str | None = None) -> Source:
    """The source at `path`, to be read in one lane: Parquet, JSON lines or text files.

    Args:
        path: a file, folder, glob or URL.
        text, tokens: field of JSON lines or column of Parquet.

    Raises:
        ConfigError: no file is there, they have several formats or none that is known, or the
            fields do not go with the format or with each other.
    """
    storage = Storage()
    known, _ = _format_at(path, storage, (Parquet, JSONL, TextFiles))
    if known is TextFiles:
        if text is not None or tokens is not None:
            raise ConfigError(
                "A field was named, and .txt files have none.",
                "Each file is one document.",
                "Leave --text and --tokens out.",
            )
        return TextFiles(path, storage=storage)
    source: Source = known(
        path, text=text, tokens=tokens, reading=Reading(open_shards=1), storage=storage
    )
    return source


def reopen_corpus(path: str, described: Mapping[str, Any]) -> ShardedSource:
    """The source at `path` that a fingerprint describes, to name its shards.

    Raises:
        ConfigError: it has no shards, or those at `path` are others.
    """
    kind, column, storage = described["kind"], described.get("column"), Storage()
    source: ShardedSource
    if kind == "MDS":
        source = MDS(path, column=str(column), storage=storage)
    elif kind == "WebDataset":
        dtype = described.get("dtype")
        source = WebDataset(path, key=str(described.get("key")), dtype=dtype, storage=storage)
    elif kind == "JSONL":
        source = JSONL(path, text=described.get("field"), storage=storage)
    elif kind == "Parquet":
        text = described.get("dtype") == "text"
        source = Parquet(
            path, text=column if text else None, tokens=None if text else column, storage=storage
        )
    elif kind == "Chat":
        source = Chat(path, storage=storage)
    else:
        raise ConfigError(
            f"The run reads a source of the kind {kind}.",
            "It has no files whose names could be shown.",
            "Leave --source out for it.",
        )
    found, saved = source.manifest.digest, described.get("manifest")
    if found != saved:
        raise ConfigError(
            f'The {len(source.manifest):,} shards at "{path}" have the manifest {found}, those of '
            f"the state {saved}.",
            "They are not the shards that the run reads, so their names would be wrong.",
            "Name the corpus as it was for the run: the same files, named by the same pattern.",
        )
    return source


def _format_at(path: str, storage: Storage, readable: Sequence[Any]) -> tuple[Any, FileInfo]:
    """The format of the files at `path`, one of `readable`, and the first file that has it."""
    first: dict[Any, FileInfo] = {}
    for file in storage.list(path):
        first.setdefault(_format_of(file.path), file)
    if MDS in readable and MDS in first:  # there may be other files beside an index
        return MDS, first[MDS]
    known = [found for found in first if found in readable]
    if len(known) != 1:
        shown = ", ".join(sorted(file.path for file in first.values())[:3])
        names = ", ".join(found.__name__ for found in readable)
        raise ConfigError(
            f'"{path}" names files of {len(known) or "no"} kinds that can be read here ({shown}).',
            f"A corpus has files of one of the kinds {names}.",
            'Use a pattern that names one kind, such as "folder/*.jsonl".',
        )
    return known[0], first[known[0]]


def _format_of(path: str) -> Any:
    return TextFiles if has_ending(path, TextFiles.endings) else format_of(path)


def _refuse_others(what: str, goes_with: str, **flags: str | None) -> None:
    given = [f"--{name}" for name, value in flags.items() if value is not None]
    if given:
        raise ConfigError(
            f"{given[0]} was given, and {what} goes with {goes_with}.",
            "It names nothing there.",
            f"Leave {given[0]} out.",
        )


def _mds_column(folder: str, storage: Storage) -> str:
    where = f"{folder}/index.json"
    size = storage.list(where)[0].num_bytes
    first = next(parse_index(storage.read_range(where, 0, size), where), None)
    names = first.layout.names if first else ()
    usual = [name for name in _COLUMNS if name in names] or list(names)[: len(names) == 1]
    if not usual:
        raise ConfigError(
            f"{where} lists the columns {', '.join(names) or '(none)'}.",
            "None of them is known to hold the documents.",
            "Name it with --column.",
        )
    return usual[0]


def _tar_key(shard: FileInfo, storage: Storage) -> str:
    """What the first members of a shard end in."""
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
            f"Which of the files in {shard.path} hold documents is unknown"
            + (f" (they end in {', '.join(sorted(set(found))[:3])})." if found else "."),
            "Only .npy, .txt and .json files can be read without being named.",
            "Name the extension with --key.",
        )
    return named[0]
