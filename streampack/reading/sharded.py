"""Sources whose documents are in shards: listed once, read a block at a time, interleaved.

A format adds how to list its shards and how to read a piece of one. Nothing here takes time or
memory in proportion to the number of documents.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streampack.errors import ConfigError, ContentError, StateError
from streampack.job.listed_once import listed_once
from streampack.packing.rng import derive_seed, permutation
from streampack.reading.base import Block, Cursor, LaneReader, Source
from streampack.reading.cursor import cursor_field, damaged_cursor
from streampack.reading.integer_arrays import Spans
from streampack.reading.lane_pieces import EpochOrder, Piece
from streampack.reading.manifest import Manifest
from streampack.reading.options import Reading, checked_reading
from streampack.reading.skips import Skips
from streampack.storage.remote import shown
from streampack.storage.storage import Storage

__all__ = ["ShardedSource"]

USUAL_BYTES = 4096  # of a document


class ShardedSource(Source):
    """A source whose documents are in shards.

    Subclasses implement `list_shards` and `read_shard` and set `seekable`, `splittable` and
    `tokenized`; those whose listing is worth sharing set `listing_fields`, and those of files say
    how the names of their files end.

    Args:
        reading: how a lane reads the shards; None is the default `Reading`.
        storage: how files are reached and cached; None is the default `Storage`.
    """

    #: How the names of its files end, in lower case; see `has_ending`. From a directory, files
    #: with such names are taken.
    endings: tuple[str, ...] = ()
    #: The argument that the source needs besides the paths, with an example of its value:
    #: ``column="tokens"``. "" if paths are enough.
    needed_argument: str = ""
    #: Attributes that `list_shards` depends on, besides the storage. If there are any, one process
    #: of a torch.distributed job lists, and the others receive what it found.
    listing_fields: tuple[str, ...] = ()

    def __init__(self, *, reading: Reading | None = None, storage: Storage | None = None) -> None:
        self.reading = checked_reading(reading)
        self.storage = Storage() if storage is None else storage
        self._manifest: Manifest | None = None
        self._orders: dict[int | None, EpochOrder] = {}

    @classmethod
    def example(cls, paths: Sequence[str]) -> str:
        """How a user makes this source for these paths, as code."""
        shown = repr(paths[0] if len(paths) == 1 else list(paths))
        arguments = f"{shown}, {cls.needed_argument}" if cls.needed_argument else shown
        return f"sources.{cls.__name__}({arguments})"

    @abstractmethod
    def list_shards(self) -> Manifest:
        """List the shards. I/O happens here; an empty listing raises `ConfigError`."""

    @abstractmethod
    def read_shard(
        self, shard: int, start: int, stop: int, skips: Skips
    ) -> Iterator[tuple[Block | Spans, int]]:
        """Yield the blocks of shard number `shard` from position `start`, each with its end.

        Positions count the manifest's unit if that is "document" or "byte" (a document belongs
        to the byte range that holds its first byte). For "shard" they are the format's own: 0 is
        the beginning, and `stop` is ignored. Reading again from the beginning of a range, or from
        any position yielded for it, must give the same blocks; that is what makes cursors small.
        Blocks respect `reading`. A block may be left where it is (`Spans`) until the next one is
        asked for: it is then copied once, shuffled.

        A broken document goes to `skips.handle(broken_document(...))`, which raises, or returns
        to skip it. What makes the rest of the shard unreadable is raised, as `broken_shard(...)`.
        """

    def will_read(self, shards: Sequence[int]) -> None:
        """A hint that these shards are next, so that remote ones are fetched ahead."""
        self.storage.prefetch([self.manifest.paths[shard] for shard in shards])

    @contextmanager
    def open_shard(self, shard: int) -> Iterator[Path]:
        """A local file with the content of a shard, in place inside the context.

        Raises:
            StateError: it does not have the size it had when the shards were listed.
            StorageError: it could not be downloaded, after all retries.
        """
        path, listed = self.manifest.paths[shard], int(self.manifest.num_bytes[shard])
        with self.storage.local(path) as file:
            size = self.storage.size(str(file))
            if size != listed:
                raise StateError(
                    f"{shown(path)} has {size} bytes and had {listed} when it was listed.",
                    "Positions in it would name other documents than before.",
                    "Leave shards as they are during a run; start a new run for changed data.",
                )
            yield file

    def broken_shard(self, shard: int, what: str, index: int = 0) -> ContentError:
        """The error for a shard that cannot be read.

        Args:
            shard: its number.
            what: a clause that says what is wrong: "it has 7 bytes and its index says 9".
            index: of the first document that cannot be read.
        """
        return ContentError(
            f"{shown(self.manifest.paths[shard])} is broken: {what}.",
            "The rest of its documents cannot be read." if index else "None of it can be read.",
            'Write or download the shard again, or skip what is broken with on_error="skip".',
            shard=shard,
            index=index,
            rest_of_shard=True,
        )

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
        described["storage"] = self.storage.storage_options  # another endpoint has other objects

        def listing() -> Manifest:
            manifest = self.list_shards()
            _ = manifest.digest  # worked out once, and sent with the manifest
            return manifest

        return listed_once(described, listing)

    def prepare(self) -> None:
        _ = self.manifest

    def describe(self) -> dict[str, Any]:
        return {
            "kind": type(self).__name__,
            "manifest": self.manifest.digest,
            "reading": self.reading.describe(),
        }

    def max_lanes(self) -> int | None:
        return None if self.splittable else len(self.manifest)

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
        path = shown(self.manifest.paths[int(origin["shard"])])
        return f"document {int(origin['index'])} of {path}"

    def place_names(
        self, cursor: Cursor | None, *, lane: int, lanes: int, seed: int, epoch: int, shuffle: bool
    ) -> list[str]:
        """The place of a lane's cursor in words, one text for each open shard.

        Args:
            cursor: of the lane; None is its beginning.
            lane: its number; the other arguments are those of `lanes`.
        """
        reader = self.lanes(lanes, seed=seed, epoch=epoch, shuffle=shuffle)[lane]
        unit = {"document": "document", "byte": "byte"}.get(self.manifest.unit, "place")
        return [
            f"{unit} {position:,} of {self.manifest.name(reader.pieces[piece][0])}"
            for piece, position in reader.opened(cursor)
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

    def _order(self, seed: int | None) -> EpochOrder:
        """The epoch with this seed; two are kept, since the lanes of a process may be in two."""
        found = self._orders.get(seed)
        if found is None:
            found = EpochOrder.of(self.manifest, seed, whole=not self.splittable)
            kept = list(self._orders.items())[-1:]
            self._orders = dict([*kept, (seed, found)])
        return found


@dataclass(frozen=True, slots=True)
class _ShardedLanes(Sequence[LaneReader]):
    """The lanes of one epoch; a lane is worked out when it is asked for."""

    source: ShardedSource
    n: int
    order: EpochOrder
    block_seed: int | None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, lane: Any) -> Any:
        if not 0 <= lane < self.n:
            raise IndexError(lane)
        return _ShardedReader(self.source, self.order.pieces(lane, self.n), self.block_seed)


@dataclass(frozen=True, slots=True)
class _ShardedReader(LaneReader):
    """Interleaves a lane's pieces of shards: one block from each open piece in turn.

    The cursor holds the open pieces with their positions, the next piece to open and whose turn
    it is: ``{"open": [[piece, position], ...], "next": int, "turn": int}``.
    """

    source: ShardedSource
    pieces: Sequence[Piece]
    block_seed: int | None

    def read(self, cursor: Cursor | None, skips: Skips) -> Iterator[tuple[Block, Cursor]]:
        opened = self.opened(cursor)
        if cursor is None:
            following, turn = len(opened), 0
        else:
            following, turn = cursor_field(cursor, "next", int), cursor_field(cursor, "turn", int)
            if following < 0:
                raise damaged_cursor(cursor)
        self._prefetch([piece for piece, _ in opened] + [following])
        readers = [self._blocks(piece, position, skips) for piece, position in opened]
        while readers:
            turn %= len(readers)
            item = next(readers[turn], None)
            if item is None:
                if following < len(self.pieces):
                    opened[turn] = [following, self.pieces[following][1]]
                    readers[turn] = self._blocks(opened[turn][0], opened[turn][1], skips)
                    following += 1
                    self._prefetch([following])
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
        """[piece, position in its shard] of each open one."""
        if cursor is None:
            width = min(self.source.reading.open_shards, len(self.pieces))
            return [[piece, self.pieces[piece][1]] for piece in range(width)]
        opened = cursor_field(cursor, "open", list)
        for pair in opened:
            if not isinstance(pair, list) or [type(part) for part in pair] != [int, int]:
                raise damaged_cursor(cursor)
            if not 0 <= pair[0] < len(self.pieces) or pair[1] < 0:
                raise damaged_cursor(cursor)
        return [list(pair) for pair in opened]

    def _prefetch(self, pieces: list[int]) -> None:
        shards = [self.pieces[piece][0] for piece in pieces if piece < len(self.pieces)]
        if shards:
            self.source.will_read(shards)

    def _blocks(self, piece: int, position: int, skips: Skips) -> Iterator[tuple[Block, int]]:
        shard, _, stop = self.pieces[piece]
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
