"""Sources of documents in shards: listed once, read a block at a time, interleaved.

A format adds the listing of its shards and the reading of a part of one. Nothing here takes time
or memory in proportion to the number of documents.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.packing.rng import derive_seed
from streampack.sources.base import Block, LinePart, Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.fields import RecordSchema
from streampack.sources.manifest import Manifest, Piece, ShardOrder
from streampack.sources.reading import ReadOptions, checked_reading
from streampack.sources.span_reader import SpanReader

if TYPE_CHECKING:
    from streampack.files.integer_arrays import UngatheredDocuments

USUAL_BYTES = 4096  # assumed size of a document


class ShardedSource(Source):
    """A source of documents in shards.

    Subclasses implement `list_shards` and `read_shard` and set `fields` or `tokenized`. Formats of
    files derive from `FileSource`.

    Args:
        reading: limits of blocks and open shards; None is the default `ReadOptions`.
    """

    #: Fields to read of records; listing completes them, and other processes take them from
    #: `details`.
    fields: RecordSchema = RecordSchema(False)

    def __init__(self, *, reading: ReadOptions | None = None) -> None:
        self.reading = checked_reading(reading)
        self._manifest: Manifest | None = None
        self._lines: dict[int | None, ShardOrder] = {}

    @property
    def tokenized(self) -> bool:  # type: ignore[override]
        """True if documents are token ids, False if they are text; lists the shards to find out."""
        if not self.fields.known:
            self.prepare()
        return self.fields.tokenized

    def __repr__(self) -> str:
        shards = "" if self._manifest is None else f"shards={len(self._manifest)}"
        return f"{self._kind}({shards})"

    @abstractmethod
    def list_shards(self) -> Manifest:
        """List the shards. I/O happens here; an empty listing raises `ConfigError`."""

    @abstractmethod
    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: ErrorPolicy
    ) -> Iterator[tuple[Block | UngatheredDocuments, int, int]]:
        """Yield blocks of the documents that begin in a part of a shard.

        Args:
            shard: index of the shard.
            low, high: the part [low, high) of the shard's weight in the manifest. All of it is
                [0, weight); a document belongs to one part, however a shard is cut.
            position: the position to continue at, as yielded for this part; None is the part's
                beginning.
            skips: the lane's handling of broken content.

        Yields:
            A block; the position after it, in the format's own unit; and that position on the
            shard's weight, between low and high. Reading from the same position must always give
            the same blocks, so that a cursor need hold no more than positions. Blocks respect
            `reading`. A block may be uncopied (`UngatheredDocuments`) and valid until the next one
            is asked for: it is then copied once, shuffled.

        Broken documents go to `sources.broken.report_broken`, which raises, or returns to skip
        them. A fault that makes the rest of the shard unreadable is raised, with
        ``rest_of_shard=True``.
        """

    def _plan(self, key: Hashable, pieces: Iterable[Piece], *, later: bool = False) -> None:
        """Declare the parts of shards that a reader will come to, so that they may be fetched."""

    def _drop(self, key: Hashable) -> None:
        """Fetch nothing more for a reader that has ended."""

    def _forget(self, shard: int) -> bool:
        """Drop the cached copy of a shard; return True if there was one."""
        return False

    def _with_fields(self, types: FieldSpec) -> ShardedSource:
        copied = super()._with_fields(types)
        assert isinstance(copied, ShardedSource)
        copied._manifest = None  # unset, so that a new listing checks the fields
        return copied

    @property
    def manifest(self) -> Manifest:
        """The shards; listed on first use, by one process of a job."""
        if self._manifest is None:
            manifest = self._listed()
            if len(manifest) == 0 or manifest.weight == 0:
                raise ConfigError(
                    f"{self!r} found {len(manifest)} shards and no document in them.",
                    "Check the path or pattern, and that the shards are complete.",
                    setting="paths",
                )
            self._manifest = manifest
        return self._manifest

    def _listed(self) -> Manifest:
        """Return the manifest from `list_shards`."""
        return self.list_shards()

    def prepare(self) -> None:
        _ = self.manifest

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self._kind,
            "manifest": self.manifest.digest,
            "reading": self.reading.describe(),
            **self.fields.by_function,
        }

    def _reader_bytes(self) -> int:
        """Return the bytes of a usual block per open shard and of its shuffled copy."""
        reading = self.reading
        usual = min(reading.block_bytes, reading.documents_per_block * USUAL_BYTES)
        return 2 * reading.open_shards * usual

    def estimate_tokens(self) -> int | None:
        return int(self.manifest.num_bytes.sum()) // (2 if self.tokenized else 4)

    def _shard_name(self, shard: int) -> str:
        return self.manifest.paths[shard]

    def document_name(self, origin: np.void) -> str:
        return f"document {int(origin['index'])} of {self._shard_name(int(origin['shard']))}"

    def _share(self, lane: int, lanes: int) -> tuple[int, int]:
        """Return one lane's part [low, high) of every epoch's line, of `lanes` equal parts."""
        return lane * self.manifest.weight // lanes, (lane + 1) * self.manifest.weight // lanes

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Sequence[LinePart]:
        rules: Any = {"seed": seed, "epoch": epoch, "shuffle": shuffle}
        return [self._span(*self._share(lane, n), **rules) for lane in range(n)]

    def _check_lanes(self, n: int, *, seed: int, shuffle: bool) -> None:
        """Accept any number of lanes: the line can be cut anywhere."""

    def _span(self, low: int, high: int, *, seed: int, epoch: int, shuffle: bool) -> SpanReader:
        """Return the reader of the part [low, high) of an epoch's line."""
        line = self._line(derive_seed(seed, epoch) if shuffle else None)
        in_blocks = shuffle and self.reading.shuffle_blocks
        block_seed = derive_seed(seed, epoch, 1) if in_blocks else None
        pieces = line.pieces(low, high)
        return SpanReader(self, pieces, block_seed, self.reading.open_shards)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lines": {}}

    def _line(self, seed: int | None) -> ShardOrder:
        """Return the shard order of a seed; two are cached for lanes in different epochs."""
        order = self._lines.get(seed)
        if order is None:
            order = ShardOrder.of(self.manifest, seed)
            kept = list(self._lines.items())[-1:]
            self._lines = dict([*kept, (seed, order)])
        return order
