"""Sources whose documents lie in shards: which lane reads what, and how it interleaves shards.

A format adds how to list its shards and how to read a piece of one. The order of the shards in an
epoch is worked out once per process and shared by its lanes (12 bytes per shard, 20 milliseconds
for a million of them); a lane is two numbers into it. Nothing here is proportional to documents.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError, ContentError
from streampack.job.listed_once import listed_once
from streampack.numeric import whole_number
from streampack.packing.rng import derive_seed, permutation
from streampack.reading.base import Block, Cursor, LaneReader, Source
from streampack.reading.cursor import cursor_field, damaged_cursor
from streampack.reading.integer_arrays import Spans
from streampack.reading.manifest import Manifest
from streampack.reading.skips import Skips

__all__ = ["ShardedSource"]

TURN_DOCUMENTS = 512  # that the open shards give together, each in its turn
USUAL_BYTES = 4096  # of a document
LEAST_DOCUMENTS = 16  # of a block, whose own cost its documents share


class ShardedSource(Source):
    """A source whose documents lie in shards.

    Subclasses implement `list_shards` and `read_shard` and set `seekable`, `splittable` and
    `tokenized`; those whose listing is worth sharing set `listing_fields`. Arguments that every
    format takes are keyword arguments of this class.

    Args:
        open_shards: shards a lane interleaves, a block at a time, for diversity inside a batch.
        block_documents: documents per block at most; documents are shuffled inside a block. None
            is 512 divided by `open_shards`, but at least 16, so that a window of that many
            documents holds some of every open shard.
        block_bytes: a block ends as soon as it holds this many bytes of tokens or text.
    """

    #: Attributes that `list_shards` depends on, beside the storage. If there are any, one process
    #: of a torch.distributed job lists, and the others are handed what it found.
    listing_fields: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        open_shards: int = 2,
        block_documents: int | None = None,
        block_bytes: int = 4 << 20,
    ) -> None:
        needed = "A reader needs at least one."
        self.open_shards = whole_number("open_shards", open_shards, needed)
        if block_documents is None:
            block_documents = max(LEAST_DOCUMENTS, TURN_DOCUMENTS // self.open_shards)
        self.block_documents = whole_number("block_documents", block_documents, needed)
        self.block_bytes = whole_number("block_bytes", block_bytes, needed)
        self._manifest: Manifest | None = None
        self._orders: dict[int | None, _Order] = {}

    @abstractmethod
    def list_shards(self) -> Manifest:
        """List the shards. I/O happens here; an empty listing raises `ConfigError`."""

    @abstractmethod
    def read_shard(
        self, shard: int, start: int, stop: int, skips: Skips
    ) -> Iterator[tuple[Block | Spans, int]]:
        """Yield the blocks of shard number `shard` from position `start`, each with its end.

        Positions count the manifest's unit where that is "document" or "byte" (a document
        belongs to the byte range its first byte lies in); for "shard" they are the format's own,
        0 is the beginning, and `stop` is to be ignored. From the beginning of a range, or from
        any position yielded for it, the same blocks follow every time; that is what makes
        cursors small. Blocks respect `block_documents` and `block_bytes`. A format may leave a
        block where it lies (`Spans`) until the next is asked for: it is then copied once, shuffled.

        A broken document goes to `skips.handle(ContentError(...))`, which raises or returns to
        skip it. What makes the rest of the shard unreadable is raised as
        `ContentError(rest_of_shard=True)`.
        """

    def will_read(self, shards: Sequence[int]) -> None:
        """A hint that these shards are next, so that remote ones may be fetched ahead."""

    @property
    def manifest(self) -> Manifest:
        """The shards; listed on first use, by one process of a job."""
        if self._manifest is None:
            manifest = self.listed()
            if len(manifest) == 0 or int(manifest.units.sum()) == 0:
                raise ConfigError(
                    f"{type(self).__name__} found {len(manifest)} shards and no document in them.",
                    "There is nothing to stream.",
                    "Check the path or pattern, and that the shards are complete.",
                )
            self._manifest = manifest
        return self._manifest

    def listed(self) -> Manifest:
        """What `list_shards` returns, here or in another process of the job."""
        if not self.listing_fields:
            return self.list_shards()
        described = {name: getattr(self, name) for name in self.listing_fields}
        described["kind"] = type(self).__qualname__
        storage = getattr(self, "storage", None)  # another endpoint has other objects
        described["storage"] = getattr(storage, "storage_options", None)

        def listing() -> Manifest:
            manifest = self.list_shards()
            _ = manifest.digest  # made once, and sent with it
            return manifest

        return listed_once(described, listing)

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

    def reader_bytes(self) -> int:
        """A block per open shard, as usual documents make it, and its shuffled copy."""
        usual = min(self.block_bytes, self.block_documents * USUAL_BYTES)
        return 2 * self.open_shards * usual

    def estimate_tokens(self) -> int | None:
        return int(self.manifest.num_bytes.sum()) // (2 if self.tokenized else 4)

    def shard_name(self, shard: int) -> str:
        return self.manifest.paths[shard]

    def document_name(self, origin: np.void) -> str:
        unit = "byte" if self.manifest.unit == "byte" else "document"
        return f"{unit} {int(origin['index'])} of {self.manifest.paths[int(origin['shard'])]}"

    def place_names(
        self, cursor: Cursor | None, *, lane: int, lanes: int, seed: int, epoch: int, shuffle: bool
    ) -> list[str]:
        """Words that lead a person to a lane's cursor: the place in each open shard.

        Args:
            cursor: of the lane; None is its beginning.
            lane: its number; the others are as for `lanes`.
        """
        reader = self.lanes(lanes, seed=seed, epoch=epoch, shuffle=shuffle)[lane]
        unit = {"document": "document", "byte": "byte"}.get(self.manifest.unit, "place")
        return [
            f"{unit} {position:,} of {self.manifest.name(reader.spans[span][0])}"
            for span, position in reader.opened(cursor)
        ] or ["the end"]

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> _ShardedLanes:
        manifest = self.manifest
        if not self.splittable and len(manifest) < n:
            raise ConfigError(
                f"{len(manifest)} shards were found for {n} lanes.",
                f"{type(self).__name__} shards are read whole, so a lane would have none.",
                f"Use lanes={len(manifest)} or fewer (and as few ranks x workers), or rewrite the "
                "corpus with more shards or in a splittable format with `streampack convert`.",
            )
        block_seed = derive_seed(seed, epoch, 1) if shuffle else None
        order = self._order(derive_seed(seed, epoch) if shuffle else None)
        return _ShardedLanes(self, n, order, block_seed)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_orders": {}}

    def _order(self, seed: int | None) -> _Order:
        """The epoch with this seed. Lanes of a process drift apart by an epoch, so two are kept."""
        found = self._orders.get(seed)
        if found is None:
            found = _Order.of(self.manifest, seed, whole=not self.splittable)
            kept = list(self._orders.items())[-1:]
            self._orders = dict([*kept, (seed, found)])
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """The shards of one epoch in reading order.

    Attributes:
        shards: (K,) int32, numbers of shards; those with nothing in them are left out where lanes
            are cut by units.
        bounds: (K + 1,) int64, units before each; empty where shards are read whole.
    """

    shards: NDArray[np.int32]
    bounds: NDArray[np.int64]

    @classmethod
    def of(cls, manifest: Manifest, seed: int | None, *, whole: bool) -> _Order:
        count = len(manifest)
        shards = np.arange(count, dtype=np.int32)
        if seed is not None:
            shards = permutation(count, seed).astype(np.int32)
        if whole:
            return cls(shards, np.zeros(0, dtype=np.int64))
        shards = shards[manifest.units[shards] > 0]
        bounds = np.zeros(len(shards) + 1, dtype=np.int64)
        np.cumsum(manifest.units[shards], out=bounds[1:])
        return cls(shards, bounds)


@dataclass(frozen=True, slots=True)
class _ShardedLanes(Sequence[LaneReader]):
    """The lanes of one epoch; a lane's spans are worked out when it is asked for."""

    source: ShardedSource
    n: int
    order: _Order
    block_seed: int | None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, lane: Any) -> Any:
        if not 0 <= lane < self.n:
            raise IndexError(lane)
        spans: Sequence[_Span] = _Whole(self.order.shards, lane, self.n)
        if self.source.splittable:
            total = int(self.order.bounds[-1])
            spans = _Cut.of(self.order, lane * total // self.n, (lane + 1) * total // self.n)
        return _ShardedReader(self.source, spans, self.block_seed)


#: (shard, start, stop), in the order a lane reads them.
_Span = tuple[int, int, int]
_END = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class _Whole(Sequence[_Span]):
    """Every n-th shard, whole."""

    shards: NDArray[np.int32]
    lane: int
    n: int

    def __len__(self) -> int:
        return len(range(self.lane, len(self.shards), self.n))

    def __getitem__(self, k: Any) -> Any:
        return int(self.shards[self.lane + k * self.n]), 0, _END


@dataclass(frozen=True, slots=True)
class _Cut(Sequence[_Span]):
    """Units [low, high) of an epoch: a run of shards, the first and last of them in part.

    Attributes:
        first: the first shard's place in the order; spans: how many there are.
    """

    order: _Order
    low: int
    high: int
    first: int
    spans: int

    @classmethod
    def of(cls, order: _Order, low: int, high: int) -> _Cut:
        first = int(np.searchsorted(order.bounds, low, side="right")) - 1
        behind = int(np.searchsorted(order.bounds, high, side="left"))
        return cls(order, low, high, first, behind - first if low < high else 0)

    def __len__(self) -> int:
        return self.spans

    def __getitem__(self, k: Any) -> Any:
        if not 0 <= k < self.spans:
            raise IndexError(k)
        place = self.first + k
        start, stop = (int(bound) for bound in self.order.bounds[place : place + 2])
        shard = int(self.order.shards[place])
        return shard, max(start, self.low) - start, min(stop, self.high) - start


@dataclass(frozen=True, slots=True)
class _ShardedReader(LaneReader):
    """Interleaves a lane's spans: one block from each open shard in turn.

    The cursor holds the open spans with their positions, the next span to open and whose turn
    it is: ``{"open": [[span, position], ...], "next": int, "turn": int}``.
    """

    source: ShardedSource
    spans: Sequence[_Span]
    block_seed: int | None

    def read(self, cursor: Cursor | None, skips: Skips) -> Iterator[tuple[Block, Cursor]]:
        opened = self.opened(cursor)
        if cursor is None:
            following, turn = len(opened), 0
        else:
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

    def opened(self, cursor: Cursor | None) -> list[list[int]]:
        """[span, position in its shard] of each open one."""
        if cursor is None:
            width = min(self.source.open_shards, len(self.spans))
            return [[span, self.spans[span][1]] for span in range(width)]
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
                elif isinstance(kept, Spans):
                    kept = kept.gathered()
                position = end
                yield kept, end
                if ended:
                    return
        except ContentError as error:
            if not error.rest_of_shard:
                raise
            skips.handle(error)
