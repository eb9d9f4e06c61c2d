"""The messages and tools of a chat record: checked, and converted from all known forms to one.

A message is `{"role", "content"}` with the other fields that a template may read, or `{"from",
"value"}` as ShareGPT has it. Anything else raises `BrokenDocumentError`. The marks of a message
become one: `"train": False` if its turn is not learnt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from streampack.arguments import type_in_words
from streampack.chats.conversations import thoughts_in_fields
from streampack.chats.marks import MARKS, is_learnt
from streampack.files.json_records import check_depth, parse_json
from streampack.sources.records import BrokenDocumentError

#: Roles that a message may have; the turns of "assistant" are learnt.
ROLES = ("assistant", "developer", "environment", "function", "ipython", "system", "tool", "user")
#: Roles by the names of speakers in ShareGPT's records and similar ones.
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
    "environment": "environment",
    "ipython": "ipython",
}
#: Types of text parts of a content, in Chat Completions and in Responses.
_TEXT_PARTS = ("text", "input_text", "output_text")
#: Fields with the text of such a part: usual, in LLaMA-Factory, and in torchtune.
_TEXTS = ("text", "value", "content")


def messages_of(values: Any, field: str) -> list[dict[str, Any]]:
    """Return the messages in a field, each with "role" and "content".

    The content is text, or None beside calls or thoughts.
    """
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
        value = _from_sharegpt(value, name)
    elif value.get("content") is None and isinstance(value.get("value"), str | list):
        value = {**value, "content": value["value"], "value": None}
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BrokenDocumentError(f"has the role {role!r} in {name}; roles are {', '.join(ROLES)}")
    marked = not MARKS.isdisjoint(value)
    learnt = is_learnt(value, role, name) if marked else True
    if isinstance(value.get("content"), list):
        value = _joined(value, role, name)
    calls = value.get("tool_calls")
    if value.get("function_call") is not None:  # OpenAI's form from before tool calls
        if calls:
            raise BrokenDocumentError(f'has a "function_call" beside "tool_calls" in {name}')
        calls = _calls(value["function_call"], name)
        value = {**value, "function_call": None, "tool_calls": calls}
    if calls is not None:
        calls = _plain_list(calls, f"tool_calls of {name}")
    content = value.get("content")
    may_lack = role == "assistant" and (calls or thoughts_in_fields(value))
    if content is None and not may_lack:
        names = ", ".join(f'"{key}"' for key, field in value.items() if field is not None)
        raise BrokenDocumentError(f'has no "content" in {name} (it has {names})')
    if content is not None and not isinstance(content, str):
        raise BrokenDocumentError(f"has {type_in_words(content)} as content of {name}")
    check_depth(value)
    # Logs write every field that a message may have; templates ask which are there.
    fields = {key: field for key, field in value.items() if field is not None}
    if calls is not None:
        fields["tool_calls"] = [_present(call) for call in calls]
    if marked:
        fields = {key: field for key, field in fields.items() if key not in MARKS}
    return {**fields, "content": content, **({} if learnt else {"train": False})}


def _present(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call without its null fields; null arguments of the call stay."""
    kept = {key: field for key, field in call.items() if field is not None}
    function = kept.get("function")
    if isinstance(function, dict):
        kept["function"] = {k: v for k, v in function.items() if v is not None or k == "arguments"}
    return kept


def _from_sharegpt(value: dict[str, Any], name: str) -> dict[str, Any]:
    speaker, text = value["from"], value.get("value")
    role = SPEAKERS.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        known = ", ".join(SPEAKERS)
        raise BrokenDocumentError(f"is from {speaker!r} in {name}; known are {known}")
    if text is None:
        text = value.get("content")
    elif value.get("content") not in (None, text):
        raise BrokenDocumentError(f'has both a "value" and a "content" in {name}')
    kept = {key: field for key, field in value.items() if key not in ("from", "value")}
    if speaker == "function_call":
        return {**kept, "role": role, "content": None, "tool_calls": _calls(text, name)}
    return {**kept, "role": role, "content": text}


def _calls(text: Any, name: str) -> list[dict[str, Any]]:
    """Return the calls in JSON text, an object with "name" and "arguments" or a list of them."""
    try:
        value = parse_json(text.encode()) if isinstance(text, str) else text
    except ValueError as error:
        raise BrokenDocumentError(
            f"has a function call in {name} that is not JSON ({error})"
        ) from None
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(isinstance(call, dict) and "name" in call for call in calls):
        raise BrokenDocumentError(f'has a function call without "name" in {name}')
    return [
        {
            "type": "function",
            "function": {"name": call["name"], "arguments": call.get("arguments", {})},
        }
        for call in calls
    ]


def _joined(value: dict[str, Any], role: str, name: str) -> dict[str, Any]:
    """Return the message with its list of parts as text; thoughts and calls become fields."""
    texts, thoughts, calls = [], [], list(value.get("tool_calls") or ())
    for part in value["content"]:
        if not isinstance(part, dict):
            raise BrokenDocumentError(f"has {type_in_words(part)} as a part of {name}")
        learnt = MARKS.isdisjoint(part) or is_learnt(part, role, f"a part of {name}")
        if role == "assistant" and not learnt:
            raise BrokenDocumentError(
                f"has a part of {name} that is not learnt; mark the whole message"
            )
        kind = part.get("type")
        text = next((part[key] for key in _TEXTS if part.get(key) is not None), None)
        if kind == "reasoning" and isinstance(text, str):  # of LLaMA-Factory, as the next one
            thoughts.append(text)
        elif kind == "tool_call" and isinstance(text, str):
            calls += _calls(text, name)
        elif kind in (None, *_TEXT_PARTS) and isinstance(text, str):
            texts.append(text)
        else:
            raise BrokenDocumentError(_unread_part(part, name))
    joined = {**value, "content": "".join(texts)}
    if thoughts and thoughts_in_fields(value):
        raise BrokenDocumentError(f"has thoughts in a part and in a field of {name}")
    if thoughts:
        joined["reasoning_content"] = "".join(thoughts)
    return {**joined, "tool_calls": calls} if calls else joined


def _unread_part(part: dict[str, Any], name: str) -> str:
    keys = ", ".join(f'"{key}"' for key in part) or "none"
    kind = part.get("type")
    what = f"with the fields {keys}" if kind is None else f"of the type {kind!r:.80}"
    return (
        f'has a part {what} in {name}; parts are texts in "text", and in Images also '
        '{"type": "image"} with "image", "url", "path" or "image_url"'
    )


def tools_of(record: Mapping[str, Any]) -> Sequence[Any] | None:
    """Return the tools that the assistant may call, or None.

    Tools are a list, or JSON text of one, in "tools"; or in "functions", OpenAI's earlier name.
    """
    tools, functions = (_listed_in(record, name) for name in ("tools", "functions"))
    if tools and functions:
        raise BrokenDocumentError('has "functions" beside "tools"')
    return tools or [{"type": "function", "function": each} for each in functions] or None


def _listed_in(record: Mapping[str, Any], name: str) -> list[Any]:
    value = record.get(name)
    if isinstance(value, str):  # tables store values of varying types as JSON text
        value = _parsed(value, name) if value.strip() else None
    if isinstance(value, list):
        value = [_parsed(each, name) for each in value]
    return [] if value is None else _plain_list(value, f'"{name}"')


def _parsed(value: Any, name: str) -> Any:
    """Return the JSON value of a text; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value.encode())
    except ValueError as error:
        raise BrokenDocumentError(f'has a text in "{name}" that is not JSON ({error})') from None


def _plain_list(value: Any, name: str) -> list[Any]:
    """Return the value as a list of JSON objects."""
    others = [value]
    if isinstance(value, list):
        others = [item for item in value if not isinstance(item, dict)]
    if others:
        kind = type_in_words(others[0])
        raise BrokenDocumentError(f"has {kind} in {name} instead of a list of objects")
    check_depth(value)
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise BrokenDocumentError(f"has a value in {name} that is not JSON ({error})") from None
    return list(value)
