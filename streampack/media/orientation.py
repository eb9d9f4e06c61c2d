"""The orientation of an image that is not decoded yet, as Pillow finds it when it is."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable, Iterator

from PIL import Image

_ORIENTATION = 0x0112  # of EXIF
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_OF_PNG = re.compile(rb"eXIf|iTXt|tEXt|zTXt")


def is_on_its_side(image: Image.Image, tail: Callable[[], bytes] | None) -> bool:
    """True if height and width of the image change places when it is turned.

    Args:
        image: of which only the head has been read.
        tail: returns the last bytes of its file; None where it has no file.
    """
    if image.format == "TIFF":  # Pillow turns it while it decodes it, and has the turned size
        return False
    if image.format != "PNG" or tail is None:
        orientation = image.getexif().get(_ORIENTATION)
    else:  # whose own getexif() decodes it, to look behind the pixels
        orientation = Image.Image.getexif(image).get(_ORIENTATION) or _behind_pixels(tail())
    return orientation in (5, 6, 7, 8)


def _behind_pixels(tail: bytes) -> int | None:
    """The orientation in chunks of a PNG by its last bytes."""
    chunks = b"".join(_chunks(tail))
    if not chunks:
        return None
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    with Image.open(
        io.BytesIO(_SIGNATURE + head + chunks + _chunk(b"IEND", b""))
    ) as without_pixels:
        found: int | None = Image.Image.getexif(without_pixels).get(_ORIENTATION)
        return found


def _chunks(data: bytes) -> Iterator[bytes]:
    """The chunks with metadata, known by their sums, in bytes that may begin anywhere."""
    for found in _OF_PNG.finditer(data):
        start = found.start() - 4
        end = start + 12 + int.from_bytes(data[max(start, 0) : found.start()], "big")
        content = data[found.start() : end - 4]
        if start >= 0 and zlib.crc32(content) == int.from_bytes(data[end - 4 : end], "big"):
            yield data[start:end]


def _chunk(name: bytes, content: bytes) -> bytes:
    size, total = len(content).to_bytes(4, "big"), zlib.crc32(name + content).to_bytes(4, "big")
    return size + name + content + total
