"""FileSource: a source with files as shards, local or remote.

A format adds the listing of its files and the reading of a part of one.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import explained
from streampack.errors import ContentError, StateError
from streampack.file_info import FileInfo, Range, shown
from streampack.job.listed_once import listed_once
from streampack.sources.base import Block
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.manifest import Manifest, Piece
from streampack.sources.reading import ReadOptions
from streampack.sources.records import DamagedFileError
from streampack.sources.sharded import ShardedSource
from streampack.storage.files import DamagedError, StoredFile
from streampack.storage.storage import Storage, default_storage

if TYPE_CHECKING:
    from streampack.files.integer_arrays import UngatheredDocuments

logger = logging.getLogger(__name__)

#: Bytes of a shard that reading begins with.
HEAD_BYTES = 256 << 10

#: Files that a listing opens, for formats with a schema or header of their own in each file.
SAMPLED_FILES = 10

_MANY_FILES, _SMALL_BYTES = 100, 256 << 10  # for such files opening may take longer than reading


class ShardBlock(NamedTuple):
    """A block of a shard.

    Attributes:
        block: the documents without the broken ones; see `ShardedSource.read_shard`. None if the
            shard has no other block.
        origin: (N,) origins, also of the broken documents.
        problems: reasons for the broken ones by their index; see `report_broken`.
        end: the position after the block, in the format's own unit.
        reached: that position on the shard's weight; above a part's end, it counts as its end.
    """

    block: Block | UngatheredDocuments | None
    origin: NDArray[np.void]
    problems: Mapping[int, str]
    end: int
    reached: int


class FileSource(ShardedSource):
    """A source with files as shards.

    Subclasses implement `list_shards` and `blocks`, set `fields` or `tokenized`, and `endings`;
    formats with a costly listing also set `listing_fields`.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        reading: limits of blocks and open shards; None is the default `ReadOptions`.
        storage: access to files and their cache; None is the default `Storage`.
    """

    #: Endings of its file names, in lower case; see `has_ending`. A directory is listed for files
    #: with these endings.
    endings: tuple[str, ...] = ()
    #: Attributes that `list_shards` depends on, besides the storage. If there are any, one process
    #: of a torch.distributed job lists, and the others receive its listing.
    listing_fields: tuple[str, ...] = ()

    #: "sampled" if the format's listing opens `SAMPLED_FILES`, and all in runs that began before.
    listing = ""

    @explained
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        reading: ReadOptions | None = None,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(reading=reading)
        self.paths: Any = paths
        self._storage = storage

    @property
    def storage(self) -> Storage:
        """Access to files and their cache."""
        if self._storage is None:
            self._storage = default_storage()
        return self._storage

    def __repr__(self) -> str:
        several = [self.paths] if isinstance(self.paths, (str, Path)) else list(self.paths)
        parts = [repr(shown(str(path))) for path in several[:1]]
        parts += [f"and {len(several) - 1} more"] if several[1:] else []
        if self._manifest is not None:
            parts.append(f"shards={len(self._manifest)}")
        return f"{self._kind}({', '.join(parts)})"

    @abstractmethod
    def blocks(self, shard: int, low: int, high: int, position: int | None) -> Iterator[ShardBlock]:
        """Open a shard, and yield the documents that begin in a part of it.

        Args: as for `ShardedSource.read_shard`.

        Raises:
            DamagedFileError, DamagedError: the rest of the shard cannot be read.
        """

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: ErrorPolicy
    ) -> Iterator[tuple[Block | UngatheredDocuments, int, int]]:
        end = position or 0
        try:
            for block, origin, problems, end, reached in self.blocks(shard, low, high, position):
                if problems:
                    from streampack.sources.broken import report_broken

                    report_broken(self, origin, problems, skips)
                if block is not None:
                    yield block, end, max(low, min(reached, high))
        except (DamagedFileError, DamagedError) as error:
            raise self.broken_shard(shard, str(error), end) from error

    def _plan(self, key: Hashable, pieces: Iterable[Piece], *, later: bool = False) -> None:
        if self._hints:
            paths = self.manifest.paths
            ranges = (self.ranges(*piece) for piece in pieces if "://" in paths[piece[0]])
            self.storage.plan(key, ranges, self.reading.open_shards, later=later)

    def _drop(self, key: Hashable) -> None:
        if self._hints:
            self.storage.remote.fetcher.plans.drop(key)

    def ranges(self, shard: int, low: int, high: int) -> Iterator[Range]:
        """Yield the bytes that reading the part [low, high) of a shard's weight takes, in order.

        They are fetched ahead of the reader, by threads, which must not call pyarrow. Here: the
        head of the shard, and the part itself if `weight_begin` tells where it lies.
        """
        listed, begin = self._listed_shard(shard), self.weight_begin(shard)
        yield Range(listed, 0, HEAD_BYTES if begin is None else begin)
        if begin is not None:
            yield Range(listed, max(begin + low - 1, 0), begin + high)

    @property
    def _hints(self) -> bool:  # type: ignore[override]
        """Hints are for remote files."""
        paths = self.manifest.paths  # sorted: a mixed list ends with URLs
        return "://" in paths[0] or "://" in paths[-1]

    def weight_begin(self, shard: int) -> int | None:
        """Return the byte at which a shard's weight begins, if it counts bytes from there.

        Reading a part then takes the bytes before the weight and those of the part; None: see
        `ranges`.
        """
        return None

    def _listed_shard(self, shard: int) -> FileInfo:
        """Return a shard's entry of the listing."""
        manifest = self.manifest
        version = manifest.versions[shard] if len(manifest.versions) else ""
        return FileInfo(manifest.paths[shard], int(manifest.num_bytes[shard]), version)

    @contextmanager
    def open_shard(self, shard: int) -> Iterator[StoredFile]:
        """Open a shard inside the context.

        Raises:
            StateError: the shard has changed since the shards were listed.
            StorageError: the shard cannot be read, after all retries.
        """
        with self._open_listed(self._listed_shard(shard)) as file:
            yield file

    @contextmanager
    def _open_listed(self, listed: FileInfo) -> Iterator[StoredFile]:
        """Open any listed file, a shard or its index; raises like `open_shard`."""
        with self.storage.open(listed) as file:
            if file.num_bytes != listed.num_bytes:
                raise StateError(
                    f"{shown(listed.path)} has {file.num_bytes} bytes and had {listed.num_bytes} "
                    "when it was listed.",
                    "Leave shards as they are during a run; start a new run for changed data.",
                    path=shown(listed.path),
                )
            yield file

    def _stored(self, shard: int) -> Iterator[FileInfo]:
        """Yield the listed files of a shard."""
        yield self._listed_shard(shard)

    def _forget(self, shard: int) -> bool:
        """Drop a shard from the cache; return True if the cache held any of it."""
        return self._storage is not None and any([*map(self._storage.forget, self._stored(shard))])

    def broken_shard(
        self,
        shard: int,
        what: str,
        index: int = 0,
        remedy: str = "Write or download the shard again",
    ) -> ContentError:
        """Return the error for a shard that cannot be read.

        Args:
            shard: index of the shard.
            what: a clause with the fault: "it has 7 bytes, and its index declares 9".
            index: index of the first document that cannot be read.
            remedy: the beginning of the advice, before the clause on skipping.
        """
        return ContentError(
            f"{shown(self.manifest.paths[shard])} is broken: {what.rstrip('.')}.",
            f'{remedy.rstrip(".")}, or skip broken content with on_error="skip" (--on-error).',
            shard=shard,
            index=index,
            rest_of_shard=True,
            path=shown(self.manifest.paths[shard]),
        )

    def _listed(self) -> Manifest:
        """Return the manifest from `list_shards`, called here or in another process of the job."""
        if not self.listing_fields:
            return self.list_shards()
        described = {name: getattr(self, name) for name in self.listing_fields}
        described["kind"] = type(self).__qualname__
        # Another endpoint has other objects.
        described["storage"] = self.storage.storage_options

        def listing() -> Manifest:
            manifest = self.list_shards()
            if "fields" in manifest.details:  # without the user's function, for other processes
                manifest.details["fields"] = replace(manifest.details["fields"], records=None)
            _ = manifest.digest  # computed here once, and sent with the manifest
            empty = np.flatnonzero((manifest.num_bytes == 0) & (manifest.weights == 0))
            if 0 < len(empty) < len(manifest):
                logger.warning(
                    "%d of %d files have no bytes, and give nothing; the first is %s.",
                    len(empty), len(manifest), shown(manifest.paths[int(empty[0])]),
                )  # fmt: skip
            return manifest

        manifest = listed_once(described, listing)
        fields = manifest.details.get("fields", self.fields)
        self.fields = replace(fields, records=self.fields.records)
        return manifest

    def _sampled(self, infos: Sequence[FileInfo]) -> Sequence[FileInfo]:
        """Return the files that the listing opens, at equal distances, the first one included."""
        return infos[:: -(-len(infos) // SAMPLED_FILES)]

    def _as_saved(self, described: Mapping[str, Any], how: str = "saved") -> FileSource:
        if not self.listing or "listing" in described:
            return self
        from streampack.formats.opened_all import opened_all

        return opened_all(self)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **({"listing": self.listing} if self.listing else {})}

    def _slow_layout(self) -> str:
        files, size = len(self.manifest), float(np.mean(self.manifest.num_bytes))
        if files < _MANY_FILES or size > _SMALL_BYTES:
            return ""
        return f"{files:,} files of {size / 1000:,.1f} KB on average; larger ones take less time"

    def document_name(self, origin: np.void) -> str:
        path = shown(self.manifest.paths[int(origin["shard"])])
        return f"document {int(origin['index'])} of {path}"
