"""Chat records with images, films and sounds: their parts as marks in the text of a message.

An image part becomes `IMAGE_PART` in its message's text, and an image part once more when a
template renders the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from streampack.chats.conversations import IMAGE_PART
from streampack.chats.records import RECORD_FIELDS
from streampack.images.attachments import NOUNS, Reference, kind_of
from streampack.images.images import reference_of
from streampack.sources.records import BrokenDocumentError

_HELD = ("url", "path", "bytes", "value", "base64")


class MediumParts(NamedTuple):
    """How messages of one kind of media are written.

    Attributes:
        mark: text that stands for a medium until the template is rendered.
        types: types of message parts, which are also names of their references.
        usual: placeholder in texts.
        wrap: makes the reference of what a part or field holds.
        alone: parts may have no settings of their own.
    """

    mark: str
    types: tuple[str, ...]
    usual: str
    wrap: Callable[[Reference], Reference]
    alone: bool = False


#: Many later datasets use LLaVA's placeholder.
IMAGES = MediumParts(IMAGE_PART, ("image", "image_url"), "<image>", lambda reference: reference)
#: Placeholder texts by kind of media; "" means no text is one.
Placeholders = Sequence[tuple[MediumParts, str]]


def with_marks(
    record: Mapping[str, Any], placeholders: Placeholders, folder: str | None
) -> tuple[dict[str, Any], list[Reference]]:
    """Replace parts with media by marks; return the record and the media that its parts contain.

    Args:
        record: a chat record.
        placeholders: text that marks a medium in messages, for each kind that is read.
        folder: base of relative paths.
    """
    media: list[Reference] = []
    marked = dict(record)
    for name in RECORD_FIELDS:
        value = record.get(name)
        if isinstance(value, (list, tuple)):
            marked[name] = [_marked(each, placeholders, folder, media) for each in value]
        elif isinstance(value, str):
            marked[name] = marked_text(value, placeholders)
    return marked, media


def marked_text(text: str, placeholders: Placeholders) -> str:
    """Replace placeholders by marks."""
    for kind, placeholder in placeholders:
        text = text.replace(placeholder, kind.mark) if placeholder else text
    return text


def _marked(
    message: Any, placeholders: Placeholders, folder: str | None, media: list[Reference]
) -> Any:
    if not isinstance(message, Mapping):
        return message
    name = "value" if "value" in message and "content" not in message else "content"
    content = message.get(name)
    if isinstance(content, str):
        return {**message, name: marked_text(content, placeholders)}
    if not isinstance(content, (list, tuple)):
        return message
    parts: list[Any] = []
    for part in content:
        kind = _kind_of(part, [kind for kind, _ in placeholders])
        if kind is None:
            parts.append(part)
            continue
        names = (*kind.types, *_HELD)
        if kind.alone and (more := sorted({*part} - {*names, "type"})):
            raise BrokenDocumentError(
                f"has a message part of type {part['type']!r} with the settings {', '.join(more)}; "
                "settings of the processor are the same for all"
            )
        held = (
            {"data": part[key]} if key == "base64" else part[key]
            for key in names
            if part.get(key) is not None
        )
        references = (reference_of(each, "in a part of a message", folder) for each in held)
        reference = next((each for each in references if each is not None), None)
        if reference is not None:
            media.append(kind.wrap(reference))
        parts.append({"type": "text", "text": kind.mark})
    return {**message, name: parts}


def _kind_of(part: Any, kinds: Sequence[MediumParts]) -> MediumParts | None:
    if not isinstance(part, Mapping):
        return None
    return next((kind for kind in kinds if part.get("type") in kind.types), None)


def has_parts(record: Mapping[str, Any], kinds: Sequence[MediumParts]) -> bool:
    """Return True if a message of the record has a part of one of the kinds."""
    messages = [each for name in RECORD_FIELDS for each in _listed(record.get(name))]
    contents = (each.get("content") for each in messages if isinstance(each, Mapping))
    parts = (part for content in contents for part in _listed(content))
    return any(_kind_of(part, kinds) is not None for part in parts)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def references_of(inside: list[Reference], column: tuple[Reference, ...]) -> tuple[Reference, ...]:
    """Return the media of a record, from the parts of its messages or from its fields.

    Raises:
        BrokenDocumentError: both have media of one kind.
    """
    if twice := {*map(kind_of, inside)} & {*map(kind_of, column)}:
        raise BrokenDocumentError(f"has {NOUNS[min(twice)]}s both in message parts and in a field")
    return (*inside, *column)
