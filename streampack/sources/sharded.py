"""Sources whose documents are in shards: listed once, read a block at a time, interleaved.

A format adds how to list its shards and how to read a piece of one. Nothing here takes time or
memory in proportion to the number of documents.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError, ContentError, StateError
from streampack.packing.rng import derive_seed
from streampack.sources.base import Block, LinePart, Reading, Source, checked_reading
from streampack.sources.fields import Fields
from streampack.sources.manifest import Manifest, ShardOrder
from streampack.sources.skips import Skips
from streampack.sources.span_reader import SpanReader

if TYPE_CHECKING:
    from streampack.sources.raw_bytes import Spans
    from streampack.storage.files import StoredFile
    from streampack.storage.remote import FileInfo
    from streampack.storage.storage import Storage

logger = logging.getLogger(__name__)


def shown(path: str) -> str:
    """A path or URL as messages show it."""
    if "://" not in path:
        return path
    from streampack.storage.remote import shown

    return shown(path)


USUAL_BYTES = 4096  # of a document
_MANY_FILES, _SMALL_BYTES = 100, 256 << 10  # of which opening them may take longer than reading


class ShardedSource(Source):
    """A source whose documents are in shards.

    Subclasses implement `list_shards` and `read_shard` and set `fields` or `tokenized`; those whose
    listing is worth sharing set `listing_fields`, and those of files say how the names of their
    files end.

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
    #: What is read of records; listing completes it, and the others take it from `details`.
    fields: Fields = Fields(False)

    def __init__(self, *, reading: Reading | None = None, storage: Storage | None = None) -> None:
        self.reading = checked_reading(reading)
        self._storage = storage
        self._manifest: Manifest | None = None
        self._lines: dict[int | None, ShardOrder] = {}

    @property
    def storage(self) -> Storage:
        """How files are reached."""
        if self._storage is None:
            from streampack.storage.storage import Storage

            self._storage = Storage()
        return self._storage

    @property
    def tokenized(self) -> bool:  # type: ignore[override]
        """True if what is read of records are token ids; lists the shards to find out."""
        if not self.fields.known:
            self.prepare()
        return self.fields.tokenized

    def __repr__(self) -> str:
        paths: Any = getattr(self, "paths", None) or getattr(self, "folders", ())
        several = [paths] if isinstance(paths, (str, Path)) else list(paths)
        parts = [repr(shown(str(path))) for path in several[:1]]
        parts += [f"and {len(several) - 1} more"] if several[1:] else []
        if self._manifest is not None:
            parts.append(f"shards={len(self._manifest)}")
        return f"{self.kind}({', '.join(parts)})"

    @abstractmethod
    def list_shards(self) -> Manifest:
        """List the shards. I/O happens here; an empty listing raises `ConfigError`."""

    @abstractmethod
    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: Skips
    ) -> Iterator[tuple[Block | Spans, int, int]]:
        """Yield blocks of the documents whose beginning lies in a part of a shard.

        Args:
            shard: its number.
            low, high: the part [low, high) of the shard's weight in the manifest. All of it is
                [0, weight); a document belongs to one part, however a shard is cut.
            position: where to go on: a position that was yielded for this part; None is its
                beginning.
            skips: of the lane.

        Yields:
            A block; the position after it, in the format's own unit; and how far that is on the
            shard's weight, between low and high. Reading again from any position must give the
            same blocks; that is what makes cursors small. Blocks respect `reading`. A block may be
            left where it is (`Spans`) until the next one is asked for: it is then copied once,
            shuffled.

        A broken document goes to `skips.handle(broken_document(...))`, which raises, or returns
        to skip it. What makes the rest of the shard unreadable is raised, as `broken_shard(...)`.
        """

    #: Bytes of a shard with which reading it begins, from its end if below zero; 0 is all of them.
    first_bytes = 1 << 20
    #: Shards are needed as local files, so remote ones are downloaded before they are read.
    whole_files = False

    def will_read(self, shards: Sequence[int]) -> None:
        """Hint that these shards are next, so that the beginning of remote ones is there."""
        self.storage.prefetch(map(self.listed_shard, shards), self.first_bytes)

    def listed_shard(self, shard: int) -> FileInfo:
        """A shard as it was listed."""
        from streampack.storage.remote import FileInfo

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

    def with_fields(self, types: FieldTypes) -> ShardedSource:
        made = super().with_fields(types)
        assert isinstance(made, ShardedSource)
        made._manifest = None  # listings say whether the fields are there
        return made

    @property
    def manifest(self) -> Manifest:
        """The shards; listed on first use, by one process of a job."""
        if self._manifest is None:
            manifest = self.listed()
            if len(manifest) == 0 or manifest.weight == 0:
                raise ConfigError(
                    f"{self.kind} found {len(manifest)} shards and no document in them.",
                    "Check the path or pattern, and that the shards are complete.",
                    setting="paths",
                )
            self._manifest = manifest
        return self._manifest

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

        from streampack.job.listed_once import listed_once

        manifest = listed_once(described, listing)
        self.fields = manifest.details.get("fields", self.fields)
        return manifest

    def prepare(self) -> None:
        _ = self.manifest

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "manifest": self.manifest.digest,
            "reading": self.reading.describe(),
        }

    def reader_bytes(self) -> int:
        """A block of documents of usual size per open shard, and its shuffled copy."""
        reading = self.reading
        usual = min(reading.block_bytes, reading.documents_per_block * USUAL_BYTES)
        return 2 * reading.open_shards * usual

    def estimate_tokens(self) -> int | None:
        return int(self.manifest.num_bytes.sum()) // (2 if self.tokenized else 4)

    def slow_layout(self) -> str:
        files, size = len(self.manifest), float(np.mean(self.manifest.num_bytes))
        if files < _MANY_FILES or size > _SMALL_BYTES:
            return ""
        return f"{files:,} files of {size / 1000:,.1f} KB on average; larger ones take less time"

    def shard_name(self, shard: int) -> str:
        return self.manifest.paths[shard]

    def document_name(self, origin: np.void) -> str:
        path = shown(self.manifest.paths[int(origin["shard"])])
        return f"document {int(origin['index'])} of {path}"

    @property
    def weight(self) -> int:
        """Of all shards together: the length of an epoch's line."""
        return self.manifest.weight

    def share(self, lane: int, lanes: int) -> tuple[int, int]:
        """The part [low, high) of every epoch's line that one of equally many lanes has."""
        return lane * self.weight // lanes, (lane + 1) * self.weight // lanes

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Sequence[LinePart]:
        rules: Any = {"seed": seed, "epoch": epoch, "shuffle": shuffle}
        return [self.span(*self.share(lane, n), **rules) for lane in range(n)]

    def check_lanes(self, n: int, *, seed: int, shuffle: bool) -> None:
        """Nothing: the line can be cut anywhere."""

    def span(self, low: int, high: int, *, seed: int, epoch: int, shuffle: bool) -> LinePart:
        """The part [low, high) of an epoch's line."""
        line = self._line(derive_seed(seed, epoch) if shuffle else None)
        in_blocks = shuffle and self.reading.shuffle_blocks
        block_seed = derive_seed(seed, epoch, 1) if in_blocks else None
        pieces = line.pieces(low, high)
        return SpanReader(self, pieces, block_seed, self.reading.open_shards)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lines": {}}

    def _line(self, seed: int | None) -> ShardOrder:
        """The epoch with this seed; two are kept, since the lanes of a process may be in two."""
        found = self._lines.get(seed)
        if found is None:
            found = ShardOrder.of(self.manifest, seed)
            kept = list(self._lines.items())[-1:]
            self._lines = dict([*kept, (seed, found)])
        return found
