"""Images by reference: references in records, sizes from the heads of files, decoded pixels.

Pillow reads the size without decoding. An image with EXIF orientation is rotated, as transformers
and datasets do when they load one; an animated image is reduced to its first frame.
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
from streampack.images.attachments import Reference, Size
from streampack.images.inline import from_base64, inline_bytes
from streampack.images.orientation import is_on_its_side, metadata_chunks
from streampack.images.pending import Pending
from streampack.images.pillow import Image, ImageOps
from streampack.sources.records import BrokenDocumentError
from streampack.storage.storage import Storage

_HEAD_BYTES = 64 << 10
#: Numbers of errors that a retry does not cure; errors of Pillow have no number.
_LASTING = (
    None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EINVAL,
    errno.ENAMETOOLONG,
)  # fmt: skip


class BrokenImageError(ValueError):
    """An image cannot be read; the message has the reason."""


def references_in(value: Any, where: str, folder: str | None = None) -> tuple[Reference, ...]:
    """Return the images in a record's field, which is an image or a list; "" and null are skipped.

    Raises:
        BrokenDocumentError: a value is not an image.
    """
    values = value if isinstance(value, (list, tuple)) else [value]
    if hasattr(value, "tolist") and not isinstance(value, Image.Image):
        values = value.tolist()
    references = (reference_of(each, where, folder) for each in values)
    return tuple(each for each in references if each is not None)


def reference_of(value: Any, where: str, folder: str | None = None) -> Reference | None:
    """Return the reference in a value: bytes, path, URL, base64, Pillow image, or object with one.

    Returns:
        None for null, "" and an object with only these, which tables use for a missing image.

    Raises:
        BrokenDocumentError: the value is of another type.
    """
    if isinstance(value, Mapping):
        if isinstance(held := value.get("data"), str) and held:  # of an OpenAI part with sound
            return inline_bytes(held) if held[:5].lower() == "data:" else from_base64(held)
        candidates = (value.get(name) for name in ("bytes", "path", "url"))
        value = next((each for each in candidates if each is not None and each != ""), None)
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
    """Return the file of an image that is not decoded yet, else None.

    A file that several processes read, or an image that several threads load, would be corrupted.
    """
    file = getattr(image, "fp", None)
    if file is None or not getattr(image, "tile", None) or image.tell():
        return None
    return file.getvalue() if isinstance(file, io.BytesIO) else getattr(image, "filename", None)


@contextmanager
def _opened(
    reference: Reference, storage: Storage, *, whole: bool, head: Pending[bytes] | None = None
) -> Iterator[Image.Image]:
    """Open an image and read its head only.

    Args:
        whole: fetch the whole file, because pixels will be decoded.
        head: the first bytes of the file, from `pending_head`, if they are being fetched.

    Raises:
        BrokenImageError: the file is missing or not an image.
        StorageError: the file could not be read; a retry may succeed.
    """
    with named_failures(reference):
        if isinstance(reference, Image.Image):
            yield reference
        else:
            with _open(reference, storage, whole, head) as image:
                if image.format == "EPS":  # a program, which may run for any time
                    raise BrokenImageError("EPS files are programs and are not run")
                yield image


@contextmanager
def named_failures(reference: Reference) -> Iterator[None]:
    """Turn errors about a reference into `BrokenImageError`, or `StorageError` if transient."""
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
                f"{path} cannot be read: {error}.", "Resume from the last checkpoint.", path=path
            ) from error
        raise BrokenImageError(f"{type(error).__name__}: {error}"[:200]) from error
    except Exception as error:  # Pillow raises errors of any class at damaged files
        raise BrokenImageError(f"{type(error).__name__}: {error}"[:200]) from error


def is_remote(reference: Reference) -> bool:
    """Return True for a URL."""
    return isinstance(reference, str) and "://" in reference


def pending_head(url: str, storage: Storage) -> Pending[bytes]:
    """Start to fetch the first bytes of a remote image, which have its size."""
    return Pending.start(storage, url, _HEAD_BYTES)


def _open(
    reference: bytes | str, storage: Storage, whole: bool, head: Pending[bytes] | None
) -> Image.Image:
    if isinstance(reference, bytes):
        return Image.open(io.BytesIO(reference))
    if not is_remote(reference):
        # Given a path, Pillow would memory-map some TIFFs and not rotate them.
        return Image.open(io.BytesIO(Path(reference).read_bytes()) if whole else reference)
    if not whole:
        data = (head or pending_head(reference, storage)).result()
        if len(data) < _HEAD_BYTES:
            return Image.open(io.BytesIO(data))
        with suppress(Exception):  # the head of some formats is longer
            return Image.open(io.BytesIO(data))
    return Image.open(io.BytesIO(storage.remote.read_start(reference)))


def _tail(image: Image.Image, reference: bytes | str, storage: Storage) -> bytes:
    """Return a PNG's metadata; of a remote one the last 64 KiB, if it has more than its head."""
    if isinstance(reference, bytes):
        return metadata_chunks(io.BytesIO(reference))
    if not is_remote(reference):
        with open(reference, "rb") as file:
            return metadata_chunks(file)
    head = getattr(image, "fp", None)
    if isinstance(head, io.BytesIO) and head.getbuffer().nbytes != _HEAD_BYTES:
        return head.getvalue()
    size = storage.size(reference)
    return storage.read_range(reference, max(size - _HEAD_BYTES, 0), size)


def content_of(reference: bytes | str, storage: Storage) -> bytes:
    """Return the bytes of a file; raises like `decoded`."""
    with named_failures(reference):
        if isinstance(reference, bytes):
            return reference
        if is_remote(reference):
            return storage.remote.read_start(reference)
        return Path(reference).read_bytes()


def size_of(
    reference: Reference, storage: Storage | None = None, head: Pending[bytes] | None = None
) -> Size:
    """Return the height and width of an image after EXIF rotation, from the head of its file.

    Args:
        storage: access to URLs.
        head: the first bytes of a remote file, if they are being fetched.

    Raises:
        BrokenImageError: the file is missing, not an image, or has so many pixels that Pillow
            treats it as a decompression bomb.
        StorageError: the file could not be read; a retry may succeed.
    """
    with _opened(reference, storage or Storage(), whole=False, head=head) as image:
        width, height = image.size
        in_memory = isinstance(reference, Image.Image)
        tail = None if in_memory else partial(_tail, image, reference, storage or Storage())
        return (width, height) if is_on_its_side(image, tail) else (height, width)


def decoded(reference: Reference, size: Size, storage: Storage | None = None) -> Image.Image:
    """Decode an image to RGB.

    Args:
        size: planned height and width in pixels.

    Raises:
        BrokenImageError: the image cannot be decoded, or has another size than planned.
        StorageError: as in `size_of`.
    """
    with _opened(reference, storage or Storage(), whole=True) as image:
        upright = ImageOps.exif_transpose(image)
        if (upright.height, upright.width) != size:
            height, width = size
            raise BrokenImageError(
                f"{upright.width} x {upright.height} pixels, not {width} x {height}"
            )
        return upright if upright.mode == "RGB" else upright.convert("RGB")


def blank(size: Size) -> Image.Image:
    """Return a grey image of a given height and width."""
    return Image.new("RGB", (size[1], size[0]), (127, 127, 127))
