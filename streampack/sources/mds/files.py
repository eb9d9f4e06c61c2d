"""The files of MDS: the index of a folder, where what it lists may be, and their digests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streampack.errors import ConfigError, StorageError
from streampack.sources.mds.index import IndexedShard
from streampack.storage.patterns import has_ending, refuse_repeated
from streampack.storage.remote import shown, split_url
from streampack.storage.storage import Storage

CODECS = ("br", "bz2", "gz", "snappy", "zstd")
#: How the names of shards end.
SHARDS = (".mds", *(f".mds.{codec}" for codec in CODECS))
_INDEX = ("/index.json",)
_INDEX_LIMIT = 1 << 30


def read_index(folder: str, storage: Storage) -> bytes:
    """The content of a folder's index.

    Raises:
        ConfigError: there is none; the error names folders below that have one.
        ContentError, StorageError: it cannot be read.
    """
    where = f"{folder}/index.json"
    try:
        return storage.read_bytes(where, _INDEX_LIMIT)
    except StorageError as error:
        if error.failure != "missing":
            raise
        below = _folders_below(folder, storage)
        remedy = "Check the path; directories with parts of a corpus may be passed as a list."
        if below:
            more = f", or a list of those {len(below)} that have one" if below[1:] else ""
            remedy = f'Pass a folder below it that has one, "{shown(below[0])}"{more}.'
        raise ConfigError(
            f"There is no {shown(where)}.",
            "A directory of MDS shards has an index.json that lists them.",
            remedy,
        ) from error


def _folders_below(folder: str, storage: Storage) -> list[str]:
    try:
        found = storage.list(folder, endings=_INDEX)
    except (ConfigError, StorageError):  # nothing, or no listing
        return []
    return [info.path.rpartition("/")[0] for info in found if has_ending(info.path, _INDEX)]


def new_hash(algorithm: str) -> Any:
    """A new hash object, from hashlib or else from the xxhash package."""
    if algorithm in hashlib.algorithms_available and not algorithm.startswith("shake_"):
        return hashlib.new(algorithm)
    if not algorithm.startswith("xxh"):
        raise ConfigError(
            f"validate_hash is {algorithm!r}.",
            "No such algorithm is known.",
            'Use one that the index holds, for example "sha1" or "xxh64".',
        )
    try:
        import xxhash
    except ImportError as error:
        raise ConfigError(
            f"validate_hash is {algorithm!r} and the xxhash package is not installed.",
            "The shards cannot be checked.",
            'Install it with `pip install "streampack[mds]"`.',
        ) from error
    if algorithm not in xxhash.algorithms_available:
        return new_hash("no " + algorithm)
    return getattr(xxhash, algorithm)()


def _local(folder: str) -> Path | None:
    protocol, rest = split_url(folder)
    return Path(rest) if protocol is None else None


def folders_of(paths: Sequence[str]) -> list[str]:
    """The directories of a corpus, by their paths or those of their indexes; local ones absolute.

    Raises:
        ConfigError: a path names a shard, or two the same directory.
    """
    folders: list[str] = []
    for path in paths:
        if has_ending(path, SHARDS):
            raise ConfigError(
                f'"{shown(path)}" names shards of an MDS corpus.',
                "Which shards there are, and what they hold, is in its index.",
                f"Pass the folder: {path.rpartition('/')[0] or '.'}.",
            )
        folder = "." if path == "index.json" else path.removesuffix("/index.json")
        protocol, rest = split_url(folder)
        local = os.path.abspath(os.path.expanduser(rest))
        folders.append(local if protocol is None else folder.rstrip("/"))
    refuse_repeated(folders)
    return folders


def only_raw(folder: str, shard: IndexedShard) -> bool:
    """True if a local directory holds a compressed shard in its uncompressed form only.

    The caches of mosaicml-streaming look like this.
    """
    local = _local(folder)
    return (
        local is not None
        and not (local / shard.zip_name).exists()
        and (local / shard.name).exists()
    )


def refuse_links(folder: str, name: str) -> None:
    """Raise `ConfigError` for a local shard that is a link to outside the index's directory."""
    local = _local(folder)
    if local is None:
        return
    target = (local / name).resolve()
    if not target.is_relative_to(local.resolve()):
        raise ConfigError(
            f"{local / name} is a link to {target}.",
            "An index may only name files in its own directory, so it is refused.",
            "Put the file itself there, or pass the directory that holds the files.",
        )
