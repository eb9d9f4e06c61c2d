"""FileSource: a source whose shards are files, local or remote.

A format adds how to list its files and how to read a piece of one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from streampack.errors import ContentError, StateError
from streampack.job.listed_once import listed_once
from streampack.sources.base import Reading
from streampack.sources.manifest import Manifest
from streampack.sources.sharded import ShardedSource
from streampack.storage.files import StoredFile
from streampack.storage.remote import FileInfo, shown
from streampack.storage.storage import Storage

logger = logging.getLogger(__name__)

_MANY_FILES, _SMALL_BYTES = 100, 256 << 10  # of which opening them may take longer than reading


class FileSource(ShardedSource):
    """A source whose shards are files.

    Subclasses implement `list_shards` and `read_shard`, set `fields` or `tokenized`, and `endings`;
    those whose listing is worth sharing set `listing_fields`.

    Args:
        reading: how a lane reads the shards; None is the default `Reading`.
        storage: how files are reached and cached; None is the default `Storage`.
    """

    #: How the names of its files end, in lower case; see `has_ending`. From a directory, files
    #: with such names are taken.
    endings: tuple[str, ...] = ()
    #: Attributes that `list_shards` depends on, besides the storage. If there are any, one process
    #: of a torch.distributed job lists, and the others receive what it found.
    listing_fields: tuple[str, ...] = ()

    def __init__(self, *, reading: Reading | None = None, storage: Storage | None = None) -> None:
        super().__init__(reading=reading)
        self._storage = storage

    @property
    def storage(self) -> Storage:
        """How files are reached."""
        if self._storage is None:
            self._storage = Storage()
        return self._storage

    def __repr__(self) -> str:
        paths: Any = getattr(self, "paths", None) or getattr(self, "folders", ())
        several = [paths] if isinstance(paths, (str, Path)) else list(paths)
        parts = [repr(shown(str(path))) for path in several[:1]]
        parts += [f"and {len(several) - 1} more"] if several[1:] else []
        if self._manifest is not None:
            parts.append(f"shards={len(self._manifest)}")
        return f"{self.kind}({', '.join(parts)})"

    #: Bytes of a shard with which reading it begins, from its end if below zero; 0 is all of them.
    first_bytes = 1 << 20
    #: Shards are needed as local files, so remote ones are downloaded before they are read.
    whole_files = False

    def will_read(self, shards: Sequence[int]) -> None:
        """Hint that these shards are next, so that the beginning of remote ones is there."""
        self.storage.prefetch(map(self.listed_shard, shards), self.first_bytes)

    def listed_shard(self, shard: int) -> FileInfo:
        """A shard as it was listed."""
        manifest = self.manifest
        version = manifest.versions[shard] if len(manifest.versions) else ""
        return FileInfo(manifest.paths[shard], int(manifest.num_bytes[shard]), version)

    @contextmanager
    def open_shard(self, shard: int) -> Iterator[StoredFile]:
        """A shard, open inside the context.

        Raises:
            StateError: it is not what it was when the shards were listed.
            StorageError: it cannot be read, after all retries.
        """
        with self.open_listed(self.listed_shard(shard)) as file:
            yield file

    @contextmanager
    def open_listed(self, listed: FileInfo) -> Iterator[StoredFile]:
        """The same for any file that was listed: a shard, or the index that goes with one."""
        with self.storage.open(listed, whole=self.whole_files) as file:
            if file.num_bytes != listed.num_bytes:
                raise StateError(
                    f"{shown(listed.path)} has {file.num_bytes} bytes and had {listed.num_bytes} "
                    "when it was listed.",
                    "Leave shards as they are during a run; start a new run for changed data.",
                    path=shown(listed.path),
                )
            yield file

    def forget(self, shard: int) -> bool:
        """Drop what the cache holds of a shard; True if there was something."""
        return self._storage is not None and self._storage.forget(self.listed_shard(shard))

    def broken_shard(
        self,
        shard: int,
        what: str,
        index: int = 0,
        remedy: str = "Write or download the shard again",
    ) -> ContentError:
        """The error for a shard that cannot be read.

        Args:
            shard: its number.
            what: a clause that says what is wrong: "it has 7 bytes and its index says 9".
            index: of the first document that cannot be read.
            remedy: begins the sentence that ends with the way to skip it.
        """
        return ContentError(
            f"{shown(self.manifest.paths[shard])} is broken: {what}.",
            f'{remedy}, or skip what is broken with on_error="skip" (--on-error).',
            shard=shard,
            index=index,
            rest_of_shard=True,
            path=shown(self.manifest.paths[shard]),
        )

    def listed(self) -> Manifest:
        """What `list_shards` returns, here or in another process of the job."""
        if not self.listing_fields:
            return self.list_shards()
        described = {name: getattr(self, name) for name in self.listing_fields}
        described["kind"] = type(self).__qualname__
        described["storage"] = self.storage.storage_options  # another endpoint has other objects

        def listing() -> Manifest:
            manifest = self.list_shards()
            _ = manifest.digest  # worked out once, and sent with the manifest
            empty = np.flatnonzero((manifest.num_bytes == 0) & (manifest.weights == 0))
            if 0 < len(empty) < len(manifest):
                logger.warning(
                    "%d of %d files have no bytes, and give nothing; the first is %s.",
                    len(empty), len(manifest), shown(manifest.paths[int(empty[0])]),
                )  # fmt: skip
            return manifest

        manifest = listed_once(described, listing)
        self.fields = manifest.details.get("fields", self.fields)
        return manifest

    def slow_layout(self) -> str:
        files, size = len(self.manifest), float(np.mean(self.manifest.num_bytes))
        if files < _MANY_FILES or size > _SMALL_BYTES:
            return ""
        return f"{files:,} files of {size / 1000:,.1f} KB on average; larger ones take less time"

    def document_name(self, origin: np.void) -> str:
        path = shown(self.manifest.paths[int(origin["shard"])])
        return f"document {int(origin['index'])} of {path}"
