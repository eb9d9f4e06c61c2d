"""Which files inside tar shards hold the documents, if nobody says so."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import PurePosixPath

from streampack.errors import ConfigError
from streampack.job.listed_once import listed_once
from streampack.sources.tar.pipes import is_pipe
from streampack.storage.remote import shown
from streampack.storage.storage import Storage

KEYS = ("npy", "txt", "json")  # in the order in which they are preferred
_PEEKED = 64  # members of a shard that are looked at


def usual_key(
    paths: Sequence[str], endings: Sequence[str], known: Sequence[str], storage: Storage
) -> str:
    """What those of the first members of the first shard end in that hold documents.

    One process of a job looks at them, and the others take what it found.

    Args:
        paths: of the shards; endings: that shards in a folder have.
        known: what such files can end in, the best first.
        storage: how they are reached.

    Raises:
        ConfigError: there is no shard, or no such file in it.
    """
    described = {"key of": paths, "known": known, "storage": storage.storage_options}
    return listed_once(described, lambda: _look(paths, endings, known, storage))


def _look(
    paths: Sequence[str], endings: Sequence[str], known: Sequence[str], storage: Storage
) -> str:
    shard, found = paths[0], list[str]()
    if not is_pipe(shard):
        shard = storage.list(shard, endings=endings)[0].path
        try:
            with storage.local(shard) as file, tarfile.open(file) as archive:
                for member in archive:
                    found.append(PurePosixPath(member.name).name.partition(".")[2].lower())
                    if len(found) >= _PEEKED:
                        break
        except (tarfile.TarError, EOFError):  # damaged, or a compression that tarfile lacks
            pass
    keys = [key for key in known for name in found if name.rsplit(".", 1)[-1] == key]
    named = [name for name in found if keys and name.rsplit(".", 1)[-1] == keys[0]]
    if not named:
        given = repr(paths[0] if len(paths) == 1 else list(paths))
        raise ConfigError(
            f"Which of the files in {shown(shard)} hold documents is unknown"
            + (f" (they end in {', '.join(sorted(set(found))[:3])})." if found else "."),
            "Only .npy, .txt and .json files can be read without being named."
            + (" No pipe: is run to see them." if is_pipe(shard) else ""),
            f'Name the extension: sources.WebDataset({given}, key="npy") (--key), with yours.',
        )
    return named[0]
