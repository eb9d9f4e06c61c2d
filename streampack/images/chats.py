"""Chat records with images: image parts as marks in the text of a message.

An image part becomes `IMAGE_PART` in its message's text, and an image part once more when a
template renders the message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streampack.chats.conversations import IMAGE_PART
from streampack.chats.records import RECORD_FIELDS
from streampack.images.attachments import Reference
from streampack.images.images import reference_of
from streampack.sources.records import BrokenDocumentError

#: Placeholder for an image in the texts of LLaVA's records, and of many later datasets.
USUAL = "<image>"
_KINDS = ("image", "image_url")
_REFERENCES = ("image", "image_url", "url", "path", "bytes", "value")


def with_marks(
    record: Mapping[str, Any], placeholder: str | None, folder: str | None
) -> tuple[dict[str, Any], list[Reference]]:
    """Replace image parts by marks; return the record and the images that its parts contain.

    Args:
        record: a chat record.
        placeholder: text that marks an image; "" means no text does. None means `USUAL` for records
            without image parts.
        folder: base of relative paths.
    """
    images: list[Reference] = []
    if placeholder is None and not _has_parts(record):
        placeholder = USUAL
    marked = dict(record)
    for name in RECORD_FIELDS:
        value = record.get(name)
        if isinstance(value, (list, tuple)):
            marked[name] = [_marked(each, placeholder, folder, images) for each in value]
        elif isinstance(value, str) and placeholder:
            marked[name] = value.replace(placeholder, IMAGE_PART)
    return marked, images


def _marked(
    message: Any, placeholder: str | None, folder: str | None, images: list[Reference]
) -> Any:
    if not isinstance(message, Mapping):
        return message
    name = "value" if "value" in message and "content" not in message else "content"
    content = message.get(name)
    if isinstance(content, str) and placeholder:
        return {**message, name: content.replace(placeholder, IMAGE_PART)}
    if not isinstance(content, (list, tuple)):
        return message
    parts: list[Any] = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") not in _KINDS:
            parts.append(part)
            continue
        held = (part[key] for key in _REFERENCES if part.get(key) is not None)
        references = (reference_of(each, "in a part of a message", folder) for each in held)
        reference = next((each for each in references if each is not None), None)
        if reference is not None:
            images.append(reference)
        parts.append({"type": "text", "text": IMAGE_PART})
    return {**message, name: parts}


def _has_parts(record: Mapping[str, Any]) -> bool:
    """Return True if a message of the record has an image part."""
    messages = [each for name in RECORD_FIELDS for each in _listed(record.get(name))]
    contents = (each.get("content") for each in messages if isinstance(each, Mapping))
    parts = (part for content in contents for part in _listed(content))
    return any(isinstance(part, Mapping) and part.get("type") in _KINDS for part in parts)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def references_of(inside: list[Reference], column: tuple[Reference, ...]) -> tuple[Reference, ...]:
    """Return the images of a record, from the parts of its messages or from its field.

    Raises:
        BrokenDocumentError: both have images.
    """
    if inside and column:
        raise BrokenDocumentError("has images both in message parts and in a field")
    return (*inside, *column)
