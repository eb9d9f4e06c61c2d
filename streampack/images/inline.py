"""Files of media in the text of records: `data:` URLs and base64."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

from streampack.sources.records import BrokenDocumentError

#: First characters of JPEG, PNG, GIF, WebP (and wav), TIFF and BMP, and of mp3, flac, ogg and webm
#: files in base64. File names with an extension are told apart by the dot, which is not in base64's
#: alphabet.
_OF_IMAGES = ("/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR", "SUkqA", "TU0AK", "Qk")
_BEGINNINGS = (*_OF_IMAGES, "SUQz", "ZkxhQ", "T2dnU", "GkXfo")
_LEAST = 64  # in characters; every image file is longer


def inline_bytes(text: str) -> bytes | None:
    """Return the bytes of a file that is encoded in the text, or None for a path or URL.

    Raises:
        BrokenDocumentError: the `data:` URL or base64 is malformed.
    """
    if text[:5].lower() == "data:":
        head, comma, body = text.partition(",")
        if not comma:
            raise BrokenDocumentError("has a data: URL without the comma before its content")
        if head.lower().endswith(";base64"):
            return _decoded(unquote_to_bytes(body))
        return unquote_to_bytes(body)
    is_mp4 = text[:4] == "AAAA" and text[6:10] == "Z0eX"
    if len(text) < _LEAST or not (is_mp4 or text.startswith(_BEGINNINGS)):
        return None
    if "." in text or "://" in text:
        return None
    return from_base64(text)


def from_base64(text: str) -> bytes:
    """Return the bytes of a text in base64; raise `BrokenDocumentError` if it is malformed."""
    return _decoded(text.encode(errors="replace"))


def _decoded(body: bytes) -> bytes:
    body = b"".join(body.split())
    try:
        return base64.b64decode(body + b"=" * (-len(body) % 4), validate=True)
    except binascii.Error as error:
        raise BrokenDocumentError(
            f"has a file in base64 that cannot be decoded ({error})"
        ) from error
