"""The files beside an MDS index: where they may lie, and their digests."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from streampack.errors import ConfigError
from streampack.sources.mds.index import IndexedShard
from streampack.storage.remote import split_url

__all__ = ["new_hash", "normal_root", "only_raw", "refuse_links"]


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


def _local_folder(root: str) -> Path | None:
    protocol, rest = split_url(root)
    return Path(rest) if protocol is None else None


def normal_root(root: str | Path) -> str:
    """A directory's name without a slash behind it; local ones absolute."""
    protocol, rest = split_url(str(root))
    if protocol is None:
        return os.path.abspath(os.path.expanduser(rest))
    return str(root).rstrip("/")


def only_raw(root: str, shard: IndexedShard) -> bool:
    """Whether a local directory holds a compressed shard in its uncompressed form alone.

    mosaicml-streaming's own caches look like this.
    """
    folder = _local_folder(root)
    return (
        folder is not None
        and not (folder / shard.zip_name).exists()
        and (folder / shard.name).exists()
    )


def refuse_links(root: str, name: str) -> None:
    """Refuse a local shard that is a link to somewhere outside of the index's directory."""
    folder = _local_folder(root)
    if folder is None:
        return
    target = (folder / name).resolve()
    if not target.is_relative_to(folder.resolve()):
        raise ConfigError(
            f"{folder / name} is a link to {target}.",
            "An index may only name files inside its own directory, so it is refused.",
            "Put the file itself there, or pass the directory that holds the files.",
        )
