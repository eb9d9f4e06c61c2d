"""Files of lines in blocks, plain or compressed.

A part of a file is a range of its stored bytes, and a line belongs to the part that its first byte
came from.

A block is a pure function of where it starts: it takes lines until it has enough of them, holds
enough bytes, or reaches the end of its part. So reading can start again wherever a block ends.
Memory is bounded by a block and one line, whatever the file holds.

Cost: one Python step per line, which parsing each line needs anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from streampack.reading.options import Reading
from streampack.storage.decompression import Content, DamagedError, open_content

_BUFFER = 1 << 20
#: Of the content before a line, so much is read to number it: it is done for messages only.
MOST_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of a file, those that hold only white space left out.

    Attributes:
        lines: N lines as stored; None for one that is longer than the limit.
        index: (N,) int64, the byte of the content at which each begins.
        end: the byte after the block.
    """

    lines: list[bytes | None]
    index: NDArray[np.int64]
    end: int


def line_blocks(
    content: Content,
    low: int,
    high: int | None,
    position: int | None,
    *,
    reading: Reading,
) -> Iterator[LineBlock]:
    """Blocks of the lines whose first byte was stored in a part of a file.

    Args:
        content: of the file, of which nothing has been read.
        low, high: the part [low, high) of the stored bytes; None is the end of the file.
        position: the end of a block of this part, to go on after it; None is its beginning.
        reading: limits of a block and of a line.

    Raises:
        DamagedError: after the last line before the damage.
    """
    if position is None:
        position, before = content.skip_stored(low)
        if before not in (b"", b"\n"):  # inside a line, which belongs to the part before
            position += _rest_of_line(content.file)
    else:
        try:
            content.skip(position)
        except DamagedError:
            if _is_beyond(content, position, high):
                return
            raise
    yield from _blocks(content, position, high, reading)


def _blocks(
    content: Content, position: int, high: int | None, reading: Reading
) -> Iterator[LineBlock]:
    lines: list[bytes | None] = []
    index: list[int] = []
    size = 0
    begin = position
    max_line_bytes = reading.most_bytes
    most_lines, most_bytes = reading.documents_per_block, reading.block_bytes
    damage: DamagedError | None = None
    while True:
        try:
            line = content.file.readline(max_line_bytes + 1)
            length = len(line)
            if length > max_line_bytes and not line.endswith(b"\n"):
                length += _rest_of_line(content.file)
        except DamagedError as error:
            # The lines before it are read; the one that it is in may be the next part's.
            damage = None if _is_beyond(content, position, high) else error
            break
        if not line or _is_beyond(content, position, high):
            break
        if len(line) > max_line_bytes or not line.isspace():
            lines.append(line if len(line) <= max_line_bytes else None)
            index.append(position)
        position += length
        size += min(length, max_line_bytes)
        if len(lines) >= most_lines or size >= most_bytes:
            yield LineBlock(lines, np.array(index, dtype=np.int64), position)
            lines, index, size, begin = [], [], 0, position
    if position > begin:
        yield LineBlock(lines, np.array(index, dtype=np.int64), position)
    if damage is not None:
        raise damage


def _is_beyond(content: Content, position: int, high: int | None) -> bool:
    """True if the content at a position was stored after the part that ends at `high`."""
    return high is not None and content.stored(position) >= high


def _rest_of_line(file: IO[bytes]) -> int:
    """Read on to the end of the line; the bytes that were read."""
    skipped = 0
    while True:
        piece = file.readline(_BUFFER)
        skipped += len(piece)
        if not piece or piece.endswith(b"\n"):
            return skipped


def line_number(file: Path, codec: str | None, byte: int) -> int | None:
    """The number of the line that begins at a byte of the (decompressed) content.

    Args:
        file: plain or compressed; codec: see `open_content`.
        byte: of the content.

    Returns:
        From 1 on; None if too much lies before it, or it cannot be read.
    """
    if byte > MOST_BYTES:
        return None
    before, left = 0, byte
    try:
        with open_content(file, codec) as content:
            while left > 0:
                block = content.file.read(min(left, _BUFFER))
                if not block:
                    return None
                before += block.count(b"\n")
                left -= len(block)
    except (DamagedError, OSError):
        return None
    return before + 1
