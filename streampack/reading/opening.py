"""Opening a shard for reading, as it was listed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streampack.errors import StateError
from streampack.reading.manifest import Manifest
from streampack.storage.remote import shown
from streampack.storage.storage import Storage

__all__ = ["open_shard"]


@contextmanager
def open_shard(storage: Storage, manifest: Manifest, shard: int) -> Iterator[Path]:
    """A local file with the content of shard number `shard`, in place inside the context.

    Raises:
        StateError: it does not have the size it had when the shards were listed.
        StorageError: it could not be downloaded, after all retries.
    """
    path, listed = manifest.paths[shard], int(manifest.num_bytes[shard])
    with storage.local(path) as file:
        size = storage.size(str(file))
        if size != listed:
            raise StateError(
                f"{shown(path)} has {size} bytes and had {listed} when it was listed.",
                "Positions in it would name other documents than before.",
                "Leave shards as they are during a run; start a new run for changed data.",
            )
        yield file
