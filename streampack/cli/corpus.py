"""The source that a path on the command line stands for, told by its files or a fingerprint."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from streampack.cli.convert import file_kind, open_source
from streampack.errors import ConfigError
from streampack.reading.base import Source
from streampack.reading.sharded import ShardedSource
from streampack.sources.chat.source import Chat
from streampack.sources.jsonl.source import JSONL
from streampack.sources.mds.index import parse_index
from streampack.sources.mds.source import MDS
from streampack.sources.tar.source import WebDataset
from streampack.storage.storage import FileInfo, Storage

__all__ = ["open_corpus", "reopen_corpus"]

_TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.zst", ".tzst")
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
    """The source at `path`: MDS, tar, Parquet, JSON lines or text files, told by their names.

    Args:
        path: a file, folder, glob or URL.
        text, tokens: field of JSON lines, column of Parquet, or field of JSON inside tar shards.
        column: of MDS; told by the index if it has one column, or one with a usual name.
        key: extension of the wanted files inside tar shards; told by the first shard's members.

    Raises:
        ConfigError: no file is there, they are of several kinds or none that is known, or a flag
            does not go with what they are.
    """
    storage = Storage()
    if column is not None:  # HTTP has no listing, and an MDS corpus needs none
        _refuse_others("--column", "MDS", text=text, tokens=tokens, key=key)
        return MDS(_folder(path), column=column, storage=storage)
    files = storage.list(path)
    kinds: dict[str, FileInfo] = {}
    for file in files:
        kinds.setdefault(_kind(file.path), file)
    if "mds" in kinds:
        _refuse_others("MDS shards", "--column", text=text, tokens=tokens, key=key)
        return MDS(_folder(path), column=_mds_column(_folder(path), storage), storage=storage)
    known = {kind: file.path for kind, file in kinds.items() if kind}
    if len(known) != 1:
        shown = ", ".join(sorted(file.path for file in kinds.values())[:3])
        raise ConfigError(
            f'"{path}" names files of {len(known) or "no"} kinds that can be read ({shown}).',
            "A corpus is MDS, tar, Parquet, JSON lines or .txt files, one kind at a time.",
            'Use a pattern that names one kind, such as "folder/*.jsonl".',
        )
    if "tar" in known:
        if text is not None and tokens is not None:
            raise ConfigError(
                "--text and --tokens were both given.",
                "A document is either text or token ids.",
                "Name the one field to read.",
            )
        fields = text is not None or tokens is not None
        return WebDataset(
            path,
            key=key or ("json" if fields else _tar_key(kinds["tar"], storage)),
            text_field=text or "text",
            tokens_field=tokens,
            storage=storage,
        )
    _refuse_others("These files", "--text or --tokens", key=key)
    return open_source(path, text=text, tokens=tokens)


def reopen_corpus(path: str, described: Mapping[str, Any]) -> ShardedSource:
    """The source at `path` that a fingerprint describes, to name its shards.

    Raises:
        ConfigError: it has no shards, or those at `path` are others.
    """
    kind, column, storage = described["kind"], described.get("column"), Storage()
    source: ShardedSource
    if kind == "MDS":
        source = MDS(_folder(path), column=str(column), storage=storage)
    elif kind == "WebDataset":
        dtype = described.get("dtype")
        source = WebDataset(path, key=str(described.get("key")), dtype=dtype, storage=storage)
    elif kind == "JSONL":
        source = JSONL(path, text=column, storage=storage)
    elif kind == "Parquet":
        from streampack.sources.parquet.source import Parquet

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


def _kind(path: str) -> str:
    name = path.rsplit("/", 1)[-1].lower()
    if name == "index.json" or ".mds" in name:
        return "mds"
    return "tar" if name.endswith(_TAR) else file_kind(path)


def _folder(path: str) -> str:
    """The folder of an MDS corpus, also where its index is named."""
    return path.removesuffix("index.json").rstrip("/") or "."


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
            "None of them says that it holds the documents.",
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
            f"{shard.path} does not tell which of its files hold documents"
            + (f" (they end in {', '.join(sorted(set(found))[:3])})." if found else "."),
            "Only .npy, .txt and .json files do.",
            "Name the extension with --key.",
        )
    return named[0]
