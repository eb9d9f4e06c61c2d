"""The order in which a reader with several open pieces comes to their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from streampack.file_info import Range
from streampack.storage.blocks import BLOCK_BYTES, EXTENT_BLOCKS


def in_turns(pieces: Iterable[Iterable[Range]], width: int) -> Iterator[Range]:
    """Yield the ranges of pieces as a reader of `width` open pieces comes to them.

    It yields a block of each open piece in turn, then two, and so on; the next piece takes the
    place of one that ends.
    """
    opened: list[Iterator[Range]] = []

    def parts(ranges: Iterable[Range]) -> Iterator[Range]:
        blocks = 1
        for file, start, stop in ranges:
            end = -1
            while end < stop:
                end = (start // BLOCK_BYTES + blocks) * BLOCK_BYTES
                end = min(end, stop) if len(opened) > 1 else stop
                yield Range(file, start, end)
                start, blocks = end, min(2 * blocks, EXTENT_BLOCKS)

    waiting = map(parts, pieces)
    opened += islice(waiting, width)
    turn = 0
    while opened:
        turn %= len(opened)
        if (part := next(opened[turn], None)) is not None:
            yield part
            turn += 1
        elif (following := next(waiting, None)) is not None:
            opened[turn] = following
        else:
            del opened[turn]
