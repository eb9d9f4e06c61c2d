"""Files of lines in blocks: plain ones by byte ranges, compressed ones from the beginning.

A block is a pure function of where it starts: it takes lines until it has enough of them, holds
enough bytes, or reaches the end. So any place a block ends is a place to start again from. Memory
is bounded by a block and one line, whatever the file holds.

Cost: one Python step per line, which parsing each line needs anyway.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.errors import ConfigError

__all__ = ["COMPRESSIONS", "LineBlock", "byte_range_blocks", "compression_of", "stream_blocks"]

#: Endings of compressed files and what pyarrow calls their format.
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}
_UNREADABLE = (".xz", ".lz4", ".br", ".zip", ".7z", ".Z", ".snappy")
_BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of a file, those that hold only white space left out.

    Attributes:
        lines: N lines as stored; None for one that is longer than the limit.
        index: (N,) int64, where each begins: a byte offset, or a line number.
        end: the position behind the block, in the same unit.
    """

    lines: list[bytes | None]
    index: NDArray[np.int64]
    end: int


def compression_of(path: str) -> str | None:
    """The compression that a file name tells of, as pyarrow calls it; None for plain.

    Raises:
        ConfigError: it tells of one that is not supported.
    """
    name = path.partition("?")[0] if "://" in path else path
    if name.endswith(_UNREADABLE):
        raise ConfigError(
            f"{name} has a compression that is not supported.",
            "It would be read as if it were text.",
            "Compress with zstd or gzip, or store plain lines, which can be split and seeked.",
        )
    return next((kind for end, kind in COMPRESSIONS.items() if name.endswith(end)), None)


@contextmanager
def open_lines(file: Path | bytes, compression: str | None) -> Iterator[IO[bytes]]:
    """A buffered reader of the decompressed bytes of a local file, or of bytes in memory."""
    if compression is None:
        with io.BytesIO(file) if isinstance(file, bytes) else open(file, "rb", _BUFFER) as plain:
            yield plain
        return
    raw = pa.BufferReader(file) if isinstance(file, bytes) else pa.OSFile(str(file))
    with raw, pa.CompressedInputStream(raw, compression) as stream:
        yield io.BufferedReader(cast(Any, stream), _BUFFER)


def byte_range_blocks(
    file: IO[bytes],
    start: int,
    stop: int,
    *,
    block_lines: int,
    block_bytes: int,
    max_line_bytes: int,
) -> Iterator[LineBlock]:
    """Blocks of the lines whose first byte lies in [start, stop); positions are byte offsets."""
    position = start
    if start > 0:
        file.seek(start - 1)
        if file.read(1) != b"\n":  # inside a line, which belongs to whoever has its first byte
            position += _rest_of_line(file)
    yield from _blocks(file, position, stop, True, block_lines, block_bytes, max_line_bytes)


def stream_blocks(
    file: IO[bytes], start: int, *, block_lines: int, block_bytes: int, max_line_bytes: int
) -> Iterator[LineBlock]:
    """Blocks of the lines from number `start` on; positions are line numbers."""
    for _ in range(start):
        line = file.readline(_BUFFER)
        if not line:
            return
        if not line.endswith(b"\n"):
            _rest_of_line(file)
    stop = np.iinfo(np.int64).max
    yield from _blocks(file, start, stop, False, block_lines, block_bytes, max_line_bytes)


def _blocks(
    file: IO[bytes],
    position: int,
    stop: int,
    in_bytes: bool,
    block_lines: int,
    block_bytes: int,
    max_line_bytes: int,
) -> Iterator[LineBlock]:
    lines: list[bytes | None] = []
    index: list[int] = []
    size = 0
    begin = position
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
        elif position == 0 and line.startswith(_BOM):
            kept = line[len(_BOM) :]
        position += length if in_bytes else 1
        size += min(length, max_line_bytes)
        if kept is None or (kept and not kept.isspace()):
            lines.append(kept)
            index.append(at)
        if len(lines) >= block_lines or size >= block_bytes:
            yield LineBlock(lines, np.array(index, dtype=np.int64), position)
            lines, index, size, begin = [], [], 0, position
    if position > begin:
        yield LineBlock(lines, np.array(index, dtype=np.int64), position)


def _rest_of_line(file: IO[bytes]) -> int:
    """Bytes to the end of the line, which are read and let go."""
    skipped = 0
    while True:
        piece = file.readline(_BUFFER)
        skipped += len(piece)
        if not piece or piece.endswith(b"\n"):
            return skipped
