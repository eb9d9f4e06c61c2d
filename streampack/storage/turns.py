"""The order in which a reader with several open pieces comes to their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.file_info import Range
from streampack.storage.plans import MOST_BLOCKS


def in_turns(pieces: Iterable[Iterable[Range]], width: int) -> Iterator[Range]:
    """Yield the ranges of pieces as a reader of `width` open pieces comes to them.

    It yields a block of each open piece in turn, then two, and so on; the next piece takes the
    place of one that ends.
    """
    waiting = iter(pieces)
    opened: list[tuple[Iterator[Range], int]] = [(iter(each), 1) for each in islice(waiting, width)]
    cut: dict[int, Range] = {}  # second parts of ranges, by turn
    turn = 0
    while opened:
        turn %= len(opened)
        ranges, blocks = opened[turn]
        following = cut.pop(turn, None) or next(ranges, None)
        if following is None:
            piece = next(waiting, None)
            if piece is not None:
                opened[turn] = iter(piece), 1
                continue
            del opened[turn]
            cut = {number - (number > turn): left for number, left in cut.items()}
            continue
        file, start, stop = following
        end = (start // BLOCK_BYTES + blocks) * BLOCK_BYTES
        if stop > end and len(opened) > 1:
            cut[turn] = Range(file, end, stop)
            stop = end
        opened[turn] = ranges, min(2 * blocks, MOST_BLOCKS)
        yield Range(file, start, stop)
        turn += 1
