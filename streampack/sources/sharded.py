"""Sources whose documents are in shards: listed once, read a block at a time, interleaved.

A format adds how to list its shards and how to read a piece of one. Nothing here takes time or
memory in proportion to the number of documents.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError
from streampack.packing.rng import derive_seed
from streampack.sources.base import Block, LinePart, Reading, Source, checked_reading
from streampack.sources.fields import Fields
from streampack.sources.manifest import Manifest, ShardOrder
from streampack.sources.skips import Skips
from streampack.sources.span_reader import SpanReader

if TYPE_CHECKING:
    from streampack.sources.raw_bytes import Spans

USUAL_BYTES = 4096  # of a document


class ShardedSource(Source):
    """A source whose documents are in shards.

    Subclasses implement `list_shards` and `read_shard` and set `fields` or `tokenized`. Formats of
    files derive from `FileSource`.

    Args:
        reading: how a lane reads the shards; None is the default `Reading`.
    """

    #: What is read of records; listing completes it, and the others take it from `details`.
    fields: Fields = Fields(False)

    def __init__(self, *, reading: Reading | None = None) -> None:
        self.reading = checked_reading(reading)
        self._manifest: Manifest | None = None
        self._lines: dict[int | None, ShardOrder] = {}

    @property
    def tokenized(self) -> bool:  # type: ignore[override]
        """True if what is read of records are token ids; lists the shards to find out."""
        if not self.fields.known:
            self.prepare()
        return self.fields.tokenized

    def __repr__(self) -> str:
        shards = "" if self._manifest is None else f"shards={len(self._manifest)}"
        return f"{self.kind}({shards})"

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
        to skip it. What makes the rest of the shard unreadable is raised, with
        ``rest_of_shard=True``.
        """

    def will_read(self, shards: Sequence[int]) -> None:
        """Hint that these shards are next, so that they may be fetched."""

    def forget(self, shard: int) -> bool:
        """Drop the copy that is kept of a shard; True if there was one."""
        return False

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
        """The shards, from `list_shards`."""
        return self.list_shards()

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

    def shard_name(self, shard: int) -> str:
        return self.manifest.paths[shard]

    def document_name(self, origin: np.void) -> str:
        return f"document {int(origin['index'])} of {self.shard_name(int(origin['shard']))}"

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
