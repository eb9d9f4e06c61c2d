"""The files that an MDS index lists: where they may be, and their digests."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from streampack.errors import ConfigError
from streampack.sources.mds.index import IndexedShard
from streampack.storage.remote import split_url


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


def normal_folder(path: str | Path) -> str:
    """The directory of a corpus, by its path or that of its index; local ones absolute."""
    folder, _, name = str(path).rpartition("/")
    if name != "index.json":
        folder = str(path)
    protocol, rest = split_url(folder)
    return os.path.abspath(os.path.expanduser(rest)) if protocol is None else folder.rstrip("/")


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
