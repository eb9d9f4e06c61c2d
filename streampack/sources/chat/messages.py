"""The messages of a chat record: checked, and in one form whatever form they came in.

A message is `{"role", "content"}` with what else a template may read, or `{"from", "value"}` as
ShareGPT has it. What is neither raises `BrokenDocumentError`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from streampack.arguments import type_in_words
from streampack.reading.nesting import MOST_NESTED, parse_json
from streampack.reading.records import BrokenDocumentError

#: Roles that a message may have; the turns of "assistant" are learnt.
ROLES = ("assistant", "developer", "function", "system", "tool", "user")
#: Who speaks in ShareGPT's records, and in those made after them.
SPEAKERS = {
    "human": "user",
    "gpt": "assistant",
    "user": "user",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}
#: What says of a message whether it is learnt.
MARKS = ("weight", "train", "loss")


def messages_of(values: Any, field: str) -> list[dict[str, Any]]:
    """The messages in a field, each with "role" and "content" (text, or None beside calls)."""
    if isinstance(values, str):
        raise BrokenDocumentError(
            f'has a text in "{field}" instead of a list of messages; if it is JSON, put '
            "json.loads of it in its place"
        )
    if not isinstance(values, list) or not values:
        raise BrokenDocumentError(f'has no list of messages in "{field}"')
    return [_message(value, f'message {i} of "{field}"') for i, value in enumerate(values)]


def _message(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BrokenDocumentError(f"has {type_in_words(value)} as {name}")
    if value.get("role") is None and value.get("from") is not None:
        value = _of_sharegpt(value, name)
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BrokenDocumentError(f"has the role {role!r} in {name}; roles are {', '.join(ROLES)}")
    calls = value.get("tool_calls")
    if value.get("function_call") is not None:  # what OpenAI had before calls of tools
        if calls:
            raise BrokenDocumentError(f'has a "function_call" beside "tool_calls" in {name}')
        calls = _calls(value["function_call"], name)
        value = {**value, "function_call": None, "tool_calls": calls}
    if calls is not None:
        calls = _plain_list(calls, f"tool_calls of {name}")
    content = value.get("content")
    if isinstance(content, list):
        content = _joined(content, name)
    if content is None and not (role == "assistant" and calls):
        raise BrokenDocumentError(f"has no content in {name}")
    if content is not None and not isinstance(content, str):
        raise BrokenDocumentError(f"has {type_in_words(content)} as content of {name}")
    for mark in MARKS:
        _check_mark(mark, value.get(mark), role, name)
    # Tables give every message every field that any has; templates ask what is there.
    fields = {
        key: calls if key == "tool_calls" else _without_nulls(field)
        for key, field in value.items()
        if field is not None
    }
    return {**fields, "content": content}


def _of_sharegpt(value: dict[str, Any], name: str) -> dict[str, Any]:
    speaker, said = value["from"], value.get("value")
    role = SPEAKERS.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        known = ", ".join(SPEAKERS)
        raise BrokenDocumentError(f"is from {speaker!r} in {name}; known are {known}")
    kept = {key: field for key, field in value.items() if key not in ("from", "value")}
    if speaker == "function_call":
        return {**kept, "role": role, "content": None, "tool_calls": _calls(said, name)}
    return {**kept, "role": role, "content": said}


def _calls(text: Any, name: str) -> list[dict[str, Any]]:
    """The calls in JSON text, an object with "name" and "arguments" or a list of them."""
    try:
        found = parse_json(text.encode()) if isinstance(text, str) else text
    except ValueError as error:
        raise BrokenDocumentError(
            f"has a function call in {name} that is not JSON ({error})"
        ) from None
    calls = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, dict) and "name" in call for call in calls):
        raise BrokenDocumentError(f'has a function call without "name" in {name}')
    return [
        {
            "type": "function",
            "function": {"name": call["name"], "arguments": call.get("arguments", {})},
        }
        for call in calls
    ]


def _check_mark(mark: str, learnt: Any, role: str, name: str) -> None:
    if learnt is None:
        return
    if not isinstance(learnt, bool | int | float) or learnt not in (0, 1):
        raise BrokenDocumentError(
            f"has the {mark} {learnt!r} in {name}; a turn is learnt (1, true) or not (0, false)"
        )
    if learnt and role != "assistant":
        raise BrokenDocumentError(
            f"has the {mark} {learnt!r} in {name}, of the role {role}; only the "
            "assistant's turns are learnt"
        )


def _joined(parts: Sequence[Any], name: str) -> str:
    """The text of content that is a list of parts."""
    texts = []
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
        known = isinstance(kind, str) and kind == "text"
        if not known or not isinstance(part.get("text"), str):
            raise BrokenDocumentError(
                f"has a part of the type {kind!r:.80} in {name}; only text is read"
            )
        texts.append(part["text"])
    return "".join(texts)


def tools_of(value: Any) -> Sequence[Any] | None:
    """The tools that the assistant may call, from a list or JSON text of one; None for none."""
    if isinstance(value, str):  # as tables hold what differs from row to row
        try:
            value = parse_json(value.encode()) if value.strip() else None
        except ValueError as error:
            raise BrokenDocumentError(f'has a text in "tools" that is not JSON ({error})') from None
    return None if value is None else _plain_list(value, '"tools"') or None


def _plain_list(value: Any, name: str) -> list[Any]:
    """A list of objects of JSON, without the fields that are null."""
    others = [value]
    if isinstance(value, list):
        others = [item for item in value if not isinstance(item, dict)]
    if others:
        kind = type_in_words(others[0])
        raise BrokenDocumentError(f"has {kind} in {name} instead of a list of objects")
    found: list[Any] = _without_nulls(value)
    try:
        json.dumps(found)
    except (TypeError, ValueError) as error:
        raise BrokenDocumentError(f"has in {name} what is not JSON ({error})") from None
    return found


def _without_nulls(value: Any, depth: int = 0) -> Any:
    """Nested objects without the fields that are null."""
    if depth > MOST_NESTED:  # in memory; what is read from text has been checked
        raise BrokenDocumentError(f"is nested more than {MOST_NESTED} deep")
    if isinstance(value, dict):
        items = value.items()
        return {key: _without_nulls(item, depth + 1) for key, item in items if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item, depth + 1) for item in value]
    return value
