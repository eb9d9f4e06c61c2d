"""Fields of the assistant's messages that may be marks and that only a template reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from streampack.chats.conversations import THOUGHT_FIELDS
from streampack.chats.fields import SPEAKERS
from streampack.chats.marks import LEARNT, MARKS, MASKED, NUMBER
from streampack.notices import is_first

logger = logging.getLogger(__name__)

_READ = MARKS | {
    "role", "content", "from", "value", "name", "tool_calls", "tool_call_id", "function_call",
    "refusal", "audio", "annotations", *THOUGHT_FIELDS,
}  # fmt: skip
#: Fields that tell who said a message and when, and so differ between messages.
_NAMES = frozenset(("id", "message_id", "uuid", "model", "index", "timestamp", "date"))
_OF_CALLS = frozenset(("type", "id", "index"))
_OF_PARTS = MARKS | {"type", "text", "value", "content", "index"}


def warn_unread(record: Mapping[str, Any], source: int) -> None:
    """Log once for a source the fields that may be marks and have no effect.

    Args:
        record: a record with a conversation.
        source: number of the source in this process.
    """
    lists = [value for value in record.values() if isinstance(value, list)]
    lists += [[value] for value in record.values() if isinstance(value, Mapping)]
    unread = {name for messages in lists for name in _unread(messages)}
    if new := sorted(name for name in unread if is_first(f"{name} of messages {source}")):
        logger.warning(
            "Messages of the assistant have %s, and only a template reads it: their turns are "
            'learnt, whatever its value. If it marks turns, write "train": false into the ones to '
            "leave out.",
            ", ".join(f'"{name}"' for name in new[:10]),
        )
    for name in (*LEARNT, MASKED):
        value = record.get(name)
        other = isinstance(value, NUMBER) and value not in (0, 1) and value == value  # not NaN
        if other and is_first(f"{name} of records {source}"):
            logger.warning(
                'Records have a "%s" beside the conversation, such as %r, and all are learnt '
                'alike. To have it in batches, pass document_fields={"%s": "float32"}.',
                name, value, name,
            )  # fmt: skip


def _unread(messages: list[Any]) -> Iterator[str]:
    """Yield the fields of the assistant's messages that are numbers, or differ between them."""
    answers = [m for m in messages if isinstance(m, Mapping) and _is_answer(m)]
    for name in {key for message in answers for key in message} - _READ - _NAMES:
        values = [message.get(name) for message in answers]
        texts = {value for value in values if value is None or isinstance(value, str)}
        if len(texts) > 1 or any(isinstance(value, NUMBER) for value in values):
            yield name
        for value in values:
            if isinstance(value, Mapping):
                yield from (f"{name}.{key}" for key in value if key in MARKS)
    for message in answers:
        for name in ("content", "value", "tool_calls"):
            parts = message.get(name)
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, Mapping):
                    keys = part.keys() - (_OF_CALLS if name == "tool_calls" else _OF_PARTS)
                    yield from (f"{name}.{key}" for key in keys if isinstance(part[key], NUMBER))


def _is_answer(message: Mapping[str, Any]) -> bool:
    role = message.get("role") or message.get("from")
    return isinstance(role, str) and SPEAKERS.get(role) == "assistant"
