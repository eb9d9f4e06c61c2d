"""Files of lines in blocks: plain ones by byte ranges, compressed ones from the beginning.

A block is a pure function of where it starts: it takes lines until it has enough of them, holds
enough bytes, or reaches the end. So reading can start again wherever a block ends. Memory is
bounded by a block and one line, whatever the file holds.

Cost: one Python step per line, which parsing each line needs anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from streampack.reading.options import Reading

__all__ = ["LineBlock", "byte_range_blocks", "stream_blocks"]

_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of a file, those that hold only white space left out.

    Attributes:
        lines: N lines as stored; None for one that is longer than the limit.
        index: (N,) int64, where each begins: a byte offset, or a line number.
        end: the position after the block, in the same unit.
    """

    lines: list[bytes | None]
    index: NDArray[np.int64]
    end: int


def byte_range_blocks(
    file: IO[bytes], start: int, stop: int, *, reading: Reading, max_line_bytes: int
) -> Iterator[LineBlock]:
    """Blocks of the lines whose first byte lies in [start, stop); positions are byte offsets."""
    position = start
    if start > 0:
        file.seek(start - 1)
        if file.read(1) != b"\n":  # inside a line, which belongs to the range of its first byte
            position += _rest_of_line(file)
    yield from _blocks(file, position, stop, True, reading, max_line_bytes)


def stream_blocks(
    file: IO[bytes], start: int, *, reading: Reading, max_line_bytes: int
) -> Iterator[LineBlock]:
    """Blocks of the lines from number `start` on; positions are line numbers."""
    for _ in range(start):
        line = file.readline(_BUFFER)
        if not line:
            return
        if not line.endswith(b"\n"):
            _rest_of_line(file)
    stop = np.iinfo(np.int64).max
    yield from _blocks(file, start, stop, False, reading, max_line_bytes)


def _blocks(
    file: IO[bytes],
    position: int,
    stop: int,
    in_bytes: bool,
    reading: Reading,
    max_line_bytes: int,
) -> Iterator[LineBlock]:
    lines: list[bytes | None] = []
    index: list[int] = []
    size = 0
    begin = position
    most_lines, most_bytes = reading.documents_per_block, reading.block_bytes
    while position < stop:
        line = file.readline(max_line_bytes + 1)
        if not line:
            break
        at, length = position, len(line)
        kept: bytes | None = line
        if length > max_line_bytes:
            kept = None
            if not line.endswith(b"\n"):
                length += _rest_of_line(file)
        position += length if in_bytes else 1
        size += min(length, max_line_bytes)
        if kept is None or (kept and not kept.isspace()):
            lines.append(kept)
            index.append(at)
        if len(lines) >= most_lines or size >= most_bytes:
            yield LineBlock(lines, np.array(index, dtype=np.int64), position)
            lines, index, size, begin = [], [], 0, position
    if position > begin:
        yield LineBlock(lines, np.array(index, dtype=np.int64), position)


def _rest_of_line(file: IO[bytes]) -> int:
    """Read on to the end of the line; the bytes that were read."""
    skipped = 0
    while True:
        piece = file.readline(_BUFFER)
        skipped += len(piece)
        if not piece or piece.endswith(b"\n"):
            return skipped
