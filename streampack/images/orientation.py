"""Orientation of an image before it is decoded, equal to the one Pillow applies afterwards."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from streampack.images.pillow import Image

_ORIENTATION = 0x0112  # EXIF tag
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_OF_PNG = re.compile(rb"eXIf|iTXt|tEXt|zTXt")


def is_on_its_side(image: Image.Image, tail: Callable[[], bytes] | None) -> bool:
    """Return True if applying the orientation swaps the image's height and width.

    Args:
        image: image with only its head read.
        tail: returns bytes of a PNG's file with the metadata behind its pixels; None if it has no
            file.
    """
    if _ORIENTATION in getattr(image, "tag_v2", ()):
        return False  # Pillow rotates a TIFF while decoding, and already reports that size
    if image.format != "PNG" or tail is None:
        orientation = image.getexif().get(_ORIENTATION)
    else:  # PNG's own getexif() would decode the pixels to look behind them
        orientation = Image.Image.getexif(image).get(_ORIENTATION) or _behind_pixels(tail())
    return orientation in (5, 6, 7, 8)


def metadata_chunks(file: BinaryIO) -> bytes:
    """Return all metadata chunks of a PNG, without reading its pixels."""
    file.seek(len(_SIGNATURE))
    chunks = []
    while len(head := file.read(8)) == 8 and head[4:] != b"IEND":
        remaining = int.from_bytes(head[:4], "big") + 4  # content and checksum
        if _OF_PNG.match(head, 4):
            chunks.append(head + file.read(remaining))
        else:
            file.seek(remaining, io.SEEK_CUR)
    return b"".join(chunks)


def _behind_pixels(tail: bytes) -> int | None:
    """Return the orientation in the metadata chunks among a PNG's bytes, or None."""
    chunks = b"".join(_chunks(tail))
    if not chunks:
        return None
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    with Image.open(
        io.BytesIO(_SIGNATURE + head + chunks + _chunk(b"IEND", b""))
    ) as without_pixels:
        orientation: int | None = Image.Image.getexif(without_pixels).get(_ORIENTATION)
        return orientation


def _chunks(data: bytes) -> Iterator[bytes]:
    """Yield metadata chunks with a valid checksum from bytes that may begin within a chunk."""
    for match in _OF_PNG.finditer(data):
        start = match.start() - 4
        end = start + 12 + int.from_bytes(data[max(start, 0) : match.start()], "big")
        content = data[match.start() : end - 4]
        if start >= 0 and zlib.crc32(content) == int.from_bytes(data[end - 4 : end], "big"):
            yield data[start:end]


def _chunk(name: bytes, content: bytes) -> bytes:
    size, total = len(content).to_bytes(4, "big"), zlib.crc32(name + content).to_bytes(4, "big")
    return size + name + content + total
