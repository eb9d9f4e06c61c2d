"""Images by reference: what a record has of one, its size from the head of its bytes, its pixels.

Pillow reads the size without decoding. An image with EXIF orientation is turned, as transformers
and datasets do when they load one; of an animated one the first frame is taken.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from streampack.arguments import type_in_words
from streampack.errors import StorageError
from streampack.extras import missing_package
from streampack.media.attachments import Reference, Size
from streampack.media.inline import inline_bytes
from streampack.media.orientation import is_on_its_side
from streampack.sources.records import BrokenDocumentError
from streampack.storage.storage import Storage

try:
    from PIL import Image, ImageOps
except ImportError as error:
    raise missing_package("Pillow", "vision") from error

_HEAD_BYTES = 64 << 10
#: Of errors that are there the next time too; those of Pillow have no number.
_LASTING = (
    None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EINVAL,
    errno.ENAMETOOLONG,
)  # fmt: skip


class BrokenImageError(ValueError):
    """An image that cannot be read; the message says why."""


def references_in(value: Any, where: str, folder: str | None = None) -> tuple[Reference, ...]:
    """The images in a field of a record: none, one, or a list of them. "" and null are none.

    Raises:
        BrokenDocumentError: something in it is no image.
    """
    values = value if isinstance(value, (list, tuple)) else [value]
    if hasattr(value, "tolist") and not isinstance(value, Image.Image):
        values = value.tolist()
    found = (reference_of(each, where, folder) for each in values)
    return tuple(each for each in found if each is not None)


def reference_of(value: Any, where: str, folder: str | None = None) -> Reference | None:
    """One image: bytes, a path or URL, base64, of Pillow, or an object with one of these.

    Returns:
        None for null, "" and an object with nothing else, as tables write no image.

    Raises:
        BrokenDocumentError: it is something else.
    """
    if isinstance(value, Mapping):
        held = (value.get(name) for name in ("bytes", "path", "url"))
        value = next((each for each in held if each is not None and each != ""), None)
    if value is None or (isinstance(value, str) and not value):
        return None
    if isinstance(value, Image.Image):
        return _file_of(value) or value
    if isinstance(value, bytes):
        return value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise BrokenDocumentError(
            f"has {type_in_words(value)} {where} where bytes, a path or URL of an image were "
            "expected"
        )
    if (held_in_text := inline_bytes(value)) is not None:
        return held_in_text
    if folder is None or "://" in value or os.path.isabs(value):
        return value
    return f"{folder.rstrip('/')}/{value}"


def _file_of(image: Image.Image) -> Reference:
    """The file of an image of which only the head has been read; None of others.

    Processes that read one open file, and threads that load one image, would disturb one another.
    """
    file = getattr(image, "fp", None)
    if file is None or not getattr(image, "tile", None) or image.tell():
        return None
    return file.getvalue() if isinstance(file, io.BytesIO) else getattr(image, "filename", None)


@contextmanager
def _opened(reference: Reference, storage: Storage, *, whole: bool) -> Iterator[Image.Image]:
    """The image, of which only the head has been read.

    Args:
        whole: its pixels will be asked for.

    Raises:
        BrokenImageError: it is not there, or is no image.
        StorageError: it could not be read, and may be another time.
    """
    with _named(reference):
        if isinstance(reference, Image.Image):
            yield reference
        else:
            with _open(reference, storage, whole=whole) as image:
                if image.format == "EPS":  # which is a program, and takes any time
                    raise BrokenImageError("EPS is not read")
                yield image


@contextmanager
def _named(reference: Reference) -> Iterator[None]:
    """What goes wrong with a reference as `BrokenImageError`, or as `StorageError`."""
    try:
        yield
    except (BrokenImageError, StorageError) as error:
        if isinstance(error, StorageError) and error.failure not in ("missing", "denied"):
            raise
        raise BrokenImageError(f"{error}"[:200]) from error
    except OSError as error:
        if error.errno not in _LASTING:
            path = str(reference)[:500]
            raise StorageError(
                f"{path} cannot be read: {error}.", "Go on from the last checkpoint.", path=path
            ) from error
        raise BrokenImageError(f"{type(error).__name__}: {error}"[:200]) from error
    except Exception as error:  # Pillow raises anything, at any damage
        raise BrokenImageError(f"{type(error).__name__}: {error}"[:200]) from error


def _open(reference: bytes | str, storage: Storage, *, whole: bool) -> Image.Image:
    if isinstance(reference, bytes):
        return Image.open(io.BytesIO(reference))
    if "://" not in reference:
        # By its path Pillow would map some TIFFs into memory, and not turn them.
        return Image.open(io.BytesIO(Path(reference).read_bytes()) if whole else reference)
    size = storage.size(reference)
    if not whole and size > _HEAD_BYTES:
        with suppress(Exception):  # the head of some formats is longer
            return Image.open(io.BytesIO(storage.read_range(reference, 0, _HEAD_BYTES)))
    return Image.open(io.BytesIO(storage.read_range(reference, 0, size)))


def _tail(image: Image.Image, reference: bytes | str, storage: Storage) -> bytes:
    """The last bytes of the file of an image, as many as are read of its head."""
    if isinstance(reference, bytes):
        return reference[-_HEAD_BYTES:]
    if "://" not in reference:
        with open(reference, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _HEAD_BYTES, 0))
            return file.read()
    size, head = storage.size(reference), getattr(image, "fp", None)
    if size <= _HEAD_BYTES and isinstance(head, io.BytesIO):
        return head.getvalue()
    return storage.read_range(reference, max(size - _HEAD_BYTES, 0), size)


def content_of(reference: bytes | str, storage: Storage) -> bytes:
    """The bytes of a file; raises as `decoded` does."""
    with _named(reference):
        if isinstance(reference, bytes):
            return reference
        return storage.read_range(reference, 0, storage.size(reference))


def size_of(reference: Reference, storage: Storage | None = None) -> Size:
    """Height and width of the image as a processor sees it, from its head.

    Args:
        storage: how URLs are reached.

    Raises:
        BrokenImageError: it is not there, is no image, or one of so many pixels that Pillow takes
            it for a decompression bomb.
        StorageError: it could not be read, and may be another time.
    """
    with _opened(reference, storage or Storage(), whole=False) as image:
        width, height = image.size
        in_memory = isinstance(reference, Image.Image)
        tail = None if in_memory else partial(_tail, image, reference, storage or Storage())
        return (width, height) if is_on_its_side(image, tail) else (height, width)


def decoded(reference: Reference, size: Size, storage: Storage | None = None) -> Image.Image:
    """The image in RGB, which has this size.

    Raises:
        BrokenImageError: it cannot be decoded, or has another size than was planned.
        StorageError: as of `size_of`.
    """
    with _opened(reference, storage or Storage(), whole=True) as image:
        made = ImageOps.exif_transpose(image)
        if (made.height, made.width) != size:
            height, width = size
            raise BrokenImageError(f"{made.width} x {made.height} pixels, not {width} x {height}")
        return made if made.mode == "RGB" else made.convert("RGB")


def blank(size: Size) -> Image.Image:
    """A grey image that takes the place of one."""
    return Image.new("RGB", (size[1], size[0]), (127, 127, 127))
