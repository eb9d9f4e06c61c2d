"""Images by reference: what a record has of one, its size from the head of its bytes, its pixels.

Pillow reads the size without decoding. An image with EXIF orientation is turned, as transformers
and datasets do when they load one; of an animated one the first frame is taken.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from PIL import Image, ImageOps

from streampack.arguments import type_in_words
from streampack.media.attachments import Reference, Size
from streampack.sources.records import BrokenDocumentError

_ORIENTATION = 0x0112  # of EXIF


class BrokenImageError(ValueError):
    """An image that cannot be read; the message says why."""


def references_in(value: Any, where: str, folder: str | None = None) -> tuple[Reference, ...]:
    """The images in a field of a record: none, one, or a list of them.

    Raises:
        BrokenDocumentError: something in it is no image.
    """
    if value is None:
        return ()
    values = value if isinstance(value, (list, tuple)) else [value]
    if hasattr(value, "tolist") and not isinstance(value, Image.Image):
        values = value.tolist()
    return tuple(reference_of(each, where, folder) for each in values)


def reference_of(value: Any, where: str, folder: str | None = None) -> Reference:
    """One image: bytes, a path or URL, an image of Pillow, or what Hugging Face's feature holds."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path") or value.get("url")
    if isinstance(value, (bytes, Image.Image)):
        return value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value:
        raise BrokenDocumentError(
            f"has {type_in_words(value)} {where} where bytes, a path or URL of an image were "
            "expected"
        )
    if folder is None or "://" in value or os.path.isabs(value):
        return value
    return f"{folder.rstrip('/')}/{value}"


@contextmanager
def _opened(reference: Reference) -> Iterator[Image.Image]:
    """The image, of which only the head has been read.

    Raises:
        BrokenImageError: it cannot be read, or is no image.
    """
    try:
        if isinstance(reference, Image.Image):
            yield reference
        elif isinstance(reference, bytes):
            with Image.open(io.BytesIO(reference)) as image:
                yield image
        else:
            with _file(reference) as file, Image.open(file) as image:
                yield image
    except BrokenImageError:
        raise
    except Exception as error:  # Pillow raises anything, at any damage
        raise BrokenImageError(f"{type(error).__name__}: {error}"[:200]) from error


def _file(path: str) -> Any:
    if "://" not in path:
        return open(path, "rb")
    import fsspec

    return fsspec.open(path, "rb")


def size_of(reference: Reference) -> Size:
    """Height and width of the image as a processor sees it, from its head.

    Raises:
        BrokenImageError: it cannot be read, is no image, or one of so many pixels that Pillow takes
            it for a decompression bomb.
    """
    with _opened(reference) as image:
        width, height = image.size
        # Pillow would decode a PNG to look for EXIF behind the pixels.
        in_head = image.format != "PNG" or "exif" in image.info
        if in_head and image.getexif().get(_ORIENTATION) in (5, 6, 7, 8):
            width, height = height, width
        return height, width


def decoded(reference: Reference, size: Size) -> Image.Image:
    """The image in RGB, which has this size.

    Raises:
        BrokenImageError: it cannot be decoded, or has another size than was planned.
    """
    with _opened(reference) as image:
        made = ImageOps.exif_transpose(image)
        if (made.height, made.width) != size:
            height, width = size
            raise BrokenImageError(f"{made.width} x {made.height} pixels, not {width} x {height}")
        return made if made.mode == "RGB" else made.convert("RGB")


def blank(size: Size) -> Image.Image:
    """A grey image that takes the place of one."""
    return Image.new("RGB", (size[1], size[0]), (127, 127, 127))
