"""Chat records with images: what a part of an image becomes in the text of a message.

A part of an image becomes `IMAGE_PART` in its message's text, and again a part where a template
renders the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampack.documents.conversations import IMAGE_PART
from streampack.media.attachments import Reference
from streampack.media.images import reference_of
from streampack.sources.chat.records import RECORD_FIELDS
from streampack.sources.records import BrokenDocumentError

_KINDS = ("image", "image_url")
_REFERENCES = ("image", "image_url", "url", "path", "bytes")


def with_marks(
    record: Mapping[str, Any], placeholder: str | None, folder: str | None
) -> tuple[dict[str, Any], list[Reference]]:
    """The record with texts in place of lists of parts, and the images that parts hold themselves.

    Args:
        record: of a chat.
        placeholder: what stands for an image in texts; None is nothing.
        folder: where relative paths begin.
    """
    found: list[Reference] = []
    made = dict(record)
    for name in RECORD_FIELDS:
        value = record.get(name)
        if isinstance(value, (list, tuple)):
            made[name] = [_marked(each, placeholder, folder, found) for each in value]
        elif isinstance(value, str) and placeholder:
            made[name] = value.replace(placeholder, IMAGE_PART)
    return made, found


def _marked(
    message: Any, placeholder: str | None, folder: str | None, found: list[Reference]
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
        value = next((part[key] for key in _REFERENCES if part.get(key) is not None), None)
        if value is not None:
            found.append(reference_of(value, "in a part of a message", folder))
        parts.append({"type": "text", "text": IMAGE_PART})
    return {**message, name: parts}


def references_of(found: list[Reference], column: tuple[Reference, ...]) -> tuple[Reference, ...]:
    """The images of a record: those of its parts, or those of its field."""
    if found and column:
        raise BrokenDocumentError("has images in parts of messages and in a field besides")
    return (*found, *column)
