"""What a source is: lanes of blocks with cursors, and the shard bookkeeping most sources share.

A `Source` yields documents in a fixed number of lanes. The order inside a lane is a pure function
of (manifest, seed, epoch, lane), and a cursor returned with a block restarts the lane behind it.
`ShardedSource` implements that for anything that lies in shards; a format adds how to list its
shards and how to read a piece of one.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents import Documents, Texts
from streampack.errors import ConfigError, ContentError
from streampack.packing.rng import derive_seed, permutation
from streampack.sources._cursor import cursor_field, damaged_cursor
from streampack.sources.skips import Skips

__all__ = ["Block", "Cursor", "LaneReader", "Manifest", "ShardedSource", "Source"]

Block = Documents | Texts
#: A place in a lane's stream: small, JSON-able, meaningful to the source alone.
Cursor = dict[str, Any]


class LaneReader(ABC):
    """One lane of one epoch."""

    @abstractmethod
    def read(self, cursor: Cursor | None, skips: Skips) -> Iterator[tuple[Block, Cursor]]:
        """Yield blocks, each with the cursor of the place behind it.

        Args:
            cursor: start behind the block that came with it; None starts the lane.
            skips: what to do with broken content, and where it is recorded.
        """


class Source(ABC):
    """A stream of documents, split into lanes."""

    #: True if starting from a cursor costs about the same anywhere in the stream.
    seekable: bool
    #: True if any number of lanes can be cut from the data.
    splittable: bool
    #: True if blocks are `Documents` (token ids), False if they are `Texts`.
    tokenized: bool
    #: True if its documents can be read only once, in this process.
    once: bool = False

    @abstractmethod
    def prepare(self) -> None:
        """List what there is, once, in the process that builds the dataset.

        Called before the source is handed to workers; it may do I/O and must be idempotent.
        """

    @abstractmethod
    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Sequence[LaneReader]:
        """The n lanes of one epoch. Cheap: nothing is opened before a reader is read."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON-able identity for the fingerprint: kind, manifest digest, columns."""

    def max_lanes(self) -> int | None:
        """The largest number of lanes it can be split into, or None if any number will do."""
        return None

    def estimate_tokens(self) -> int | None:
        """A rough number of tokens in one epoch, or None if nothing is known."""
        return None

    def document_name(self, origin: np.void) -> str:
        """Words that lead a person to the document."""
        return f"document {int(origin['index'])} of shard {int(origin['shard'])}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards of a source, as columns.

    Attributes:
        paths: S paths or URLs, in listing order.
        units: (S,) int64, how much there is to split in each shard.
        num_bytes: (S,) int64, size of each shard as stored.
        unit: what `units` counts: "document" and "byte" can be split anywhere, a "shard" is read
            whole (units are all 1).
        details: what the format remembers per source (JSON-able), for example column encodings.
    """

    paths: tuple[str, ...]
    units: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    unit: str
    details: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def digest(self) -> str:
        """64 bits, in hexadecimal, over names (without their folder), units and sizes.

        The folder is left out so that a corpus may move between buckets and disks.
        """
        digest = hashlib.blake2b(digest_size=8)
        for path in self.paths:
            digest.update(path.rsplit("/", 1)[-1].encode() + b"\0")
        digest.update(np.ascontiguousarray(self.units).tobytes())
        digest.update(np.ascontiguousarray(self.num_bytes).tobytes())
        return digest.hexdigest()


class ShardedSource(Source):
    """A source whose documents lie in shards.

    Subclasses implement `list_shards` and `read_shard` and set `seekable`, `splittable` and
    `tokenized`. Arguments that every format takes are keyword arguments of this class.

    Args:
        open_shards: shards a lane interleaves, a block at a time, for diversity inside a batch.
        block_documents: documents per block at most; documents are shuffled inside a block.
        block_bytes: a block ends as soon as it holds this many bytes of tokens or text.
    """

    def __init__(
        self,
        *,
        open_shards: int = 2,
        block_documents: int = 256,
        block_bytes: int = 4 << 20,
    ) -> None:
        for name, value in (
            ("open_shards", open_shards),
            ("block_documents", block_documents),
            ("block_bytes", block_bytes),
        ):
            if value < 1:
                raise ConfigError(
                    f"{name} is {value}.",
                    "A reader needs at least one.",
                    f"Pass a positive {name}, or leave it out for the default.",
                )
        self.open_shards = open_shards
        self.block_documents = block_documents
        self.block_bytes = block_bytes
        self._manifest: Manifest | None = None

    @abstractmethod
    def list_shards(self) -> Manifest:
        """List the shards. I/O happens here; an empty listing raises `ConfigError`."""

    @abstractmethod
    def read_shard(
        self, shard: int, start: int, stop: int, skips: Skips
    ) -> Iterator[tuple[Block, int]]:
        """Yield the blocks of shard number `shard` from position `start`, each with its end.

        Positions count the manifest's unit where that is "document" or "byte" (a document
        belongs to the byte range its first byte lies in); for "shard" they are the format's own,
        0 is the beginning, and `stop` is to be ignored. From the beginning of a range, or from
        any position yielded for it, the same blocks follow every time; that is what makes
        cursors small. Blocks respect `block_documents` and `block_bytes`.

        A broken document goes to `skips.handle(ContentError(...))`, which raises or returns to
        skip it. What makes the rest of the shard unreadable is raised as
        `ContentError(rest_of_shard=True)`.
        """

    def will_read(self, shards: Sequence[int]) -> None:
        """A hint that these shards are next, so that remote ones may be fetched ahead."""

    @property
    def manifest(self) -> Manifest:
        """The shards; listed on first use."""
        if self._manifest is None:
            manifest = self.list_shards()
            if len(manifest) == 0 or int(manifest.units.sum()) == 0:
                raise ConfigError(
                    f"{type(self).__name__} found {len(manifest)} shards and no document in them.",
                    "There is nothing to stream.",
                    "Check the path or pattern, and that the shards are complete.",
                )
            self._manifest = manifest
        return self._manifest

    def prepare(self) -> None:
        _ = self.manifest

    def describe(self) -> dict[str, Any]:
        return {
            "kind": type(self).__name__,
            "manifest": self.manifest.digest,
            "open_shards": self.open_shards,
            "block_documents": self.block_documents,
            "block_bytes": self.block_bytes,
        }

    def max_lanes(self) -> int | None:
        return None if self.splittable else len(self.manifest)

    def estimate_tokens(self) -> int | None:
        return int(self.manifest.num_bytes.sum()) // (2 if self.tokenized else 4)

    def document_name(self, origin: np.void) -> str:
        unit = "byte" if self.manifest.unit == "byte" else "document"
        return f"{unit} {int(origin['index'])} of {self.manifest.paths[int(origin['shard'])]}"

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Sequence[LaneReader]:
        manifest = self.manifest
        if not self.splittable and len(manifest) < n:
            raise ConfigError(
                f"{len(manifest)} shards were found for {n} lanes.",
                f"{type(self).__name__} shards are read whole, so a lane would have none.",
                f"Use lanes={len(manifest)} or fewer (and as few ranks x workers), or rewrite the "
                "corpus with more shards or in a splittable format with `streampack convert`.",
            )
        order = np.arange(len(manifest), dtype=np.int64)
        if shuffle:
            order = permutation(len(manifest), derive_seed(seed, epoch))
        bounds = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(manifest.units[order], out=bounds[1:])
        block_seed = derive_seed(seed, epoch, 1) if shuffle else None
        return _ShardedLanes(self, n, order, bounds, block_seed)


@dataclass(frozen=True, slots=True)
class _ShardedLanes(Sequence[LaneReader]):
    """The lanes of one epoch; a lane's spans are worked out when it is asked for."""

    source: ShardedSource
    n: int
    order: NDArray[np.int64]
    bounds: NDArray[np.int64]
    block_seed: int | None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, lane: Any) -> Any:
        if not 0 <= lane < self.n:
            raise IndexError(lane)
        return _ShardedReader(self.source, self._spans(lane), self.block_seed)

    def _spans(self, lane: int) -> list[tuple[int, int, int]]:
        """(shard, start, stop) in this lane's reading order."""
        if not self.source.splittable:
            whole = np.iinfo(np.int64).max
            return [(int(shard), 0, int(whole)) for shard in self.order[lane :: self.n]]
        total = int(self.bounds[-1])
        low, high = lane * total // self.n, (lane + 1) * total // self.n
        first = int(np.searchsorted(self.bounds, low, side="right")) - 1
        spans = []
        for k in range(first, len(self.order)):
            start, stop = int(self.bounds[k]), int(self.bounds[k + 1])
            if start >= high:
                break
            if max(start, low) < min(stop, high):
                spans.append((int(self.order[k]), max(start, low) - start, min(stop, high) - start))
        return spans


@dataclass(frozen=True, slots=True)
class _ShardedReader(LaneReader):
    """Interleaves a lane's spans: one block from each open shard in turn.

    The cursor holds the open spans with their positions, the next span to open and whose turn
    it is: ``{"open": [[span, position], ...], "next": int, "turn": int}``.
    """

    source: ShardedSource
    spans: list[tuple[int, int, int]]
    block_seed: int | None

    def read(self, cursor: Cursor | None, skips: Skips) -> Iterator[tuple[Block, Cursor]]:
        if cursor is None:
            width = min(self.source.open_shards, len(self.spans))
            opened = [[span, self.spans[span][1]] for span in range(width)]
            following, turn = width, 0
        else:
            opened = self._opened(cursor)
            following, turn = cursor_field(cursor, "next", int), cursor_field(cursor, "turn", int)
        self._announce([span for span, _ in opened] + [following])
        readers = [self._blocks(span, position, skips) for span, position in opened]
        while readers:
            turn %= len(readers)
            item = next(readers[turn], None)
            if item is None:
                if following < len(self.spans):
                    opened[turn] = [following, self.spans[following][1]]
                    readers[turn] = self._blocks(opened[turn][0], opened[turn][1], skips)
                    following += 1
                    self._announce([following])
                else:
                    del opened[turn], readers[turn]
                continue
            block, opened[turn][1] = item
            turn += 1
            if len(block):
                yield (
                    block,
                    {"open": [list(pair) for pair in opened], "next": following, "turn": turn},
                )

    def _opened(self, cursor: Cursor) -> list[list[int]]:
        opened = cursor_field(cursor, "open", list)
        for pair in opened:
            if not isinstance(pair, list) or [type(part) for part in pair] != [int, int]:
                raise damaged_cursor(cursor)
            if not 0 <= pair[0] < len(self.spans) or pair[1] < 0:
                raise damaged_cursor(cursor)
        return [list(pair) for pair in opened]

    def _announce(self, spans: list[int]) -> None:
        shards = [self.spans[span][0] for span in spans if span < len(self.spans)]
        if shards:
            self.source.will_read(shards)

    def _blocks(self, span: int, position: int, skips: Skips) -> Iterator[tuple[Block, int]]:
        shard, _, stop = self.spans[span]
        try:
            for block, end in self.source.read_shard(shard, position, stop, skips):
                kept, ended = skips.replay(block, shard)
                if self.block_seed is not None and len(kept) > 1:
                    seed = derive_seed(self.block_seed, shard, position)
                    kept = kept.take(permutation(len(kept), seed))
                position = end
                yield kept, end
                if ended:
                    return
        except ContentError as error:
            if not error.rest_of_shard:
                raise
            skips.handle(error)
