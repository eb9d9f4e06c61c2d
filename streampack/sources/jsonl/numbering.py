"""Numbers of lines, counted from 1 as editors do, from the bytes at which they begin."""

from __future__ import annotations

from pathlib import Path

from streampack.storage.decompression import DamagedError, open_content

__all__ = ["line_number"]

#: Of the content before a line, so much is read to number it: it is done for messages only.
MOST_BYTES = 32 << 20
_BLOCK = 1 << 20


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
                block = content.file.read(min(left, _BLOCK))
                if not block:
                    return None
                before += block.count(b"\n")
                left -= len(block)
    except (DamagedError, OSError):
        return None
    return before + 1
