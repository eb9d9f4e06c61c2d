"""Reading a part of the line: pieces of shards, a block of each open one in turn."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from streampack.errors import ContentError
from streampack.packing.rng import derive_seed, permutation
from streampack.sources.base import Block, Cursor, LinePart
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.manifest import ShardPieces

if TYPE_CHECKING:
    from streampack.sources.sharded import ShardedSource

logger = logging.getLogger(__name__)

OpenPiece = tuple[int, int | None, int]  # an open piece: index, position, weight up to the position


@dataclass(frozen=True, slots=True)
class SpanReader(LinePart):
    """Interleaves the pieces of shards of a part of the line: a block from each open one in turn.

    The cursor holds the open pieces, each with its position (None at its beginning) and that
    position on the shard's weight; the next piece to open; and the open piece to read next:
    ``{"open": [[piece, position, reached], ...], "next": int, "turn": int}``.
    """

    source: ShardedSource
    pieces: ShardPieces
    block_seed: int | None
    open_shards: int

    def plan(self, cursor: Cursor | None = None, *, later: bool = False) -> Hashable:
        """Let the source fetch the pieces ahead from a cursor on; return the key of this part."""
        opened, pieces = self.opened(cursor), self.pieces
        begun = [(pieces[n][0], reached, pieces[n][2]) for n, _, reached in opened]
        key = (id(self.source), pieces.low, pieces.high, *(pieces[n] for n, *_ in opened))
        new = (pieces[n] for n in range(cursor["next"] if cursor else len(opened), len(pieces)))
        self.source._plan(key, chain(begun, new), later=later)
        return key

    def read(self, cursor: Cursor | None, skips: ErrorPolicy) -> Iterator[tuple[Block, Cursor]]:
        key = self.plan(cursor)
        try:
            yield from self._read(cursor, skips)
        finally:
            self.source._drop(key)

    def _read(self, cursor: Cursor | None, skips: ErrorPolicy) -> Iterator[tuple[Block, Cursor]]:
        opened = self.opened(cursor)
        following, turn = len(opened), 0
        if cursor is not None:
            following, turn = cursor["next"], cursor["turn"]
        readers = [self._blocks(piece, position, skips) for piece, position, _ in opened]
        while readers:
            turn %= len(readers)
            item = next(readers[turn], None)
            if item is None:
                if following < len(self.pieces):
                    opened[turn] = (following, None, self.pieces[following][1])
                    readers[turn] = self._blocks(following, None, skips)
                    following += 1
                else:
                    del opened[turn], readers[turn]
                continue
            block, position, reached = item
            opened[turn] = (opened[turn][0], position, reached)
            turn += 1
            if len(block):
                places = [list(place) for place in opened]
                yield block, {"open": places, "next": following, "turn": turn}

    def opened(self, cursor: Cursor | None) -> list[OpenPiece]:
        """Return each open piece with its position, also as a position on the shard's weight."""
        if cursor is None:
            width = min(self.open_shards, len(self.pieces))
            return [(piece, None, self.pieces[piece][1]) for piece in range(width)]
        return [(piece, position, reached) for piece, position, reached in cursor["open"]]

    def left(self, cursor: Cursor | None) -> int:
        opened = self.opened(cursor)
        following: int = len(opened) if cursor is None else cursor["next"]
        unread: int = sum(self.pieces[piece][2] - reached for piece, _, reached in opened)
        return unread + self.pieces.weight(following)

    def _blocks(
        self, piece: int, position: int | None, skips: ErrorPolicy
    ) -> Iterator[tuple[Any, int, int]]:
        """Yield a piece's blocks; fetch a remote shard anew if its local copy fails a check.

        A shard is fetched anew once. A copy that fails a check is never kept.
        """
        shard, low, high = self.pieces[piece]
        fetched_again = False
        while True:
            try:
                for block, end, reached in self.source.read_shard(
                    shard, low, high, position, skips
                ):
                    if self.block_seed is not None and len(block) > 1:
                        begin = low if position is None else position
                        seed = derive_seed(self.block_seed, shard, begin)
                        block = block.take(permutation(len(block), seed))
                    elif hasattr(block, "gathered"):  # the block's data is not copied yet
                        block = block.gathered()
                    position = end
                    yield block, end, reached
                return
            except ContentError as error:
                if self.source._forget(shard) and not fetched_again:
                    logger.warning("fetched again, as its copy may be damaged: %s", error.fact)
                    fetched_again = True
                elif error.rest_of_shard:
                    return skips.handle(error)
                else:
                    raise
