"""What a chat record holds: a conversation, in one of the shapes that people write them in.

A record in none of them raises `BrokenDocumentError`.

The messages of a chat record: checked, and in one form whatever form they came in.

A message is `{"role", "content"}` with what else a template may read, or `{"from", "value"}` as
ShareGPT has it. What is neither raises `BrokenDocumentError`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streampack.arguments import type_in_words
from streampack.documents.conversations import Conversation, thoughts_in_fields
from streampack.sources.records import MOST_NESTED, BrokenDocumentError, parse_json, too_deep

#: Roles that a message may have; the turns of "assistant" are learnt.
ROLES = ("assistant", "developer", "environment", "function", "ipython", "system", "tool", "user")
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
    "environment": "environment",
    "ipython": "ipython",
}
#: What says of a message whether it is learnt.
MARKS = ("weight", "train", "loss")
#: Types of parts of a content that are text: of Chat Completions and of Responses.
_TEXT_PARTS = ("text", "input_text", "output_text")


def messages_of(values: Any, field: str) -> list[dict[str, Any]]:
    """The messages in a field, each with "role" and "content".

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
    may_lack = role == "assistant" and (calls or thoughts_in_fields(value))
    if content is None and not may_lack:
        raise BrokenDocumentError(f"has no content in {name}")
    if content is not None and not isinstance(content, str):
        raise BrokenDocumentError(f"has {type_in_words(content)} as content of {name}")
    for mark in MARKS:
        _check_mark(mark, value.get(mark), role, name)
    _check_depth(value)
    # Logs write every field that a message may have; templates ask which are there.
    fields = {key: field for key, field in value.items() if field is not None}
    if calls is not None:
        fields["tool_calls"] = [_present(call) for call in calls]
    return {**fields, "content": content}


def _present(call: dict[str, Any]) -> dict[str, Any]:
    """A call without its fields that are null; those of its arguments are the caller's."""
    found = {key: field for key, field in call.items() if field is not None}
    function = found.get("function")
    if isinstance(function, dict):
        found["function"] = {k: v for k, v in function.items() if v is not None or k == "arguments"}
    return found


def _from_sharegpt(value: dict[str, Any], name: str) -> dict[str, Any]:
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
        if not isinstance(part, dict):
            raise BrokenDocumentError(f"has {type_in_words(part)} as a part of {name}")
        kind, text = part.get("type"), part.get("text")
        if kind not in (None, *_TEXT_PARTS) or not isinstance(text, str):
            there = ", ".join(f'"{key}"' for key in part) or "none"
            what = f"with the fields {there}" if kind is None else f"of the type {kind!r:.80}"
            raise BrokenDocumentError(
                f'has a part {what} in {name}; only text in "text" is read, and images by '
                "sources of images"
            )
        texts.append(text)
    return "".join(texts)


def tools_of(record: Mapping[str, Any]) -> Sequence[Any] | None:
    """The tools that the assistant may call, or None.

    They are a list, or JSON text of one, in "tools"; or in "functions", as OpenAI had them before.
    """
    tools, functions = (_listed_in(record, name) for name in ("tools", "functions"))
    if tools and functions:
        raise BrokenDocumentError('has "functions" beside "tools"')
    return tools or [{"type": "function", "function": each} for each in functions] or None


def _listed_in(record: Mapping[str, Any], name: str) -> list[Any]:
    value = record.get(name)
    if isinstance(value, str):  # as tables hold what differs from row to row
        try:
            value = parse_json(value.encode()) if value.strip() else None
        except ValueError as error:
            raise BrokenDocumentError(
                f'has a text in "{name}" that is not JSON ({error})'
            ) from None
    return [] if value is None else _plain_list(value, f'"{name}"')


def _plain_list(value: Any, name: str) -> list[Any]:
    """A list of objects of JSON."""
    others = [value]
    if isinstance(value, list):
        others = [item for item in value if not isinstance(item, dict)]
    if others:
        kind = type_in_words(others[0])
        raise BrokenDocumentError(f"has {kind} in {name} instead of a list of objects")
    _check_depth(value)
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise BrokenDocumentError(f"has in {name} what is not JSON ({error})") from None
    return list(value)


def _check_depth(value: Any, depth: int = 0) -> None:
    if depth > MOST_NESTED:  # in memory; what is read from text has been checked
        raise too_deep()
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, depth + 1)


#: Shapes by name, in the order in which they are looked for, with the fields that make each.
SHAPES: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "preference": ("chosen", "rejected"),
    "completion": ("prompt", "completion"),
    "alpaca": ("instruction", "output"),
}
#: Who speaks before the answer in dialogues that are one text, as in HH-RLHF.
_ASSISTANT = "Assistant:"
#: Every field that is read of a record.
RECORD_FIELDS = (
    *dict.fromkeys(name for names in SHAPES.values() for name in names),
    "input", "history", "system", "tools", "functions", "label",
)  # fmt: skip


def known_shapes() -> str:
    """The shapes in words: the fields that make each."""
    shapes = [" and ".join(f'"{name}"' for name in names) for names in SHAPES.values()]
    return f"{', '.join(shapes[:-1])}, or {shapes[-1]}"


def shape_of(names: Collection[str]) -> str | None:
    """The shape of a record with these fields; None if it has none.

    Raises:
        BrokenDocumentError: it may be a conversation or a pair.
    """
    found = [shape for shape, fields in SHAPES.items() if set(fields) <= set(names)]
    if found[1:] and "preference" in found[1:]:
        raise BrokenDocumentError(
            f'has "{SHAPES[found[0]][0]}" beside "chosen" and "rejected", and either may be meant; '
            f'pass shape="{found[0]}" or shape="preference"'
        )
    return found[0] if found else None


def conversation_of(record: Mapping[str, Any], shape: str | None = None) -> Conversation:
    """The conversation in a record: of one shape, or by the fields that it has."""
    there = [name for name, value in record.items() if value is not None]
    shape = shape_of(there) if shape is None else shape
    if shape is None or not set(SHAPES[shape]) <= set(there):
        names = ", ".join(f'"{name}"' for name in list(record)[:10]) or "none"
        wanted = known_shapes() if shape is None else " and ".join(SHAPES[shape])
        raise BrokenDocumentError(f"has none of {wanted} (it has {names})")
    conversation = replace(_READERS[shape](record), tools=tools_of(record))
    for side in filter(None, (conversation, conversation.rejected)):
        messages = side.messages
        if not any(side.learns(i) and _says_something(m) for i, m in enumerate(messages)):
            raise BrokenDocumentError("has no assistant turn with anything to learn")
    return conversation


def _says_something(message: Mapping[str, Any]) -> bool:
    return bool(message["content"] or message.get("tool_calls") or thoughts_in_fields(message))


def _conversation(messages: list[dict[str, Any]], first_learnt: int = 0) -> Conversation:
    """The conversation of these messages, from which the marks of what is learnt are taken."""
    learnt = [[message.pop(mark, True) for mark in MARKS] for message in messages]
    left_out = frozenset(i for i, marks in enumerate(learnt) if not all(marks))
    return Conversation(messages, first_learnt, left_out=left_out)


def _plain(prompt: str, completion: str) -> Conversation:
    return Conversation([_turn("user", prompt), _turn("assistant", completion)], plain=True)


def _turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _text(record: Mapping[str, Any], name: str) -> str:
    """The text in a field, which may be missing."""
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise BrokenDocumentError(f'has {type_in_words(value)} in "{name}" where text is read')
    return value or ""


def _with_system(record: Mapping[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, after the system's if that is a field of its own."""
    system = _text(record, "system")
    if not system:
        return messages
    if messages[0]["role"] == "system":
        if messages[0]["content"] != system:
            raise BrokenDocumentError('has a "system" and another message of the system')
        return messages
    return [_turn("system", system), *messages]


# ---------------------------------------------------------------------------- readers of shapes


def _of_messages(record: Mapping[str, Any]) -> Conversation:
    messages = messages_of(record["messages"], "messages")
    return _conversation(_with_system(record, messages))


def _of_sharegpt(record: Mapping[str, Any]) -> Conversation:
    messages = messages_of(record["conversations"], "conversations")
    return _conversation(_with_system(record, messages))


def _of_alpaca(record: Mapping[str, Any]) -> Conversation:
    before: list[dict[str, Any]] = []
    history = record.get("history") or []
    for pair in history if isinstance(history, list) else [history]:
        if not (
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(t, str) for t in pair)
        ):
            raise BrokenDocumentError('has no list of pairs of texts in "history"')
        before += [_turn("user", pair[0]), _turn("assistant", pair[1])]
    asked = [text for text in (_text(record, "instruction"), _text(record, "input")) if text]
    said = [_turn("user", "\n".join(asked)), _turn("assistant", _text(record, "output"))]
    return _conversation(_with_system(record, before + said))


def _of_completion(record: Mapping[str, Any]) -> Conversation:
    return _answered(record["prompt"], record["completion"], "completion", record)


def _of_preference(record: Mapping[str, Any]) -> Conversation:
    prompt, chosen, rejected = record.get("prompt"), record["chosen"], record["rejected"]
    texts = isinstance(chosen, str) and isinstance(rejected, str)
    if prompt is None and texts:
        prompt = _common_text(chosen, rejected)
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    elif isinstance(chosen, list) and isinstance(rejected, list) and not isinstance(prompt, list):
        prompt, chosen, rejected = _common_messages(prompt, chosen, rejected)
    if chosen == rejected:
        raise BrokenDocumentError('has answers in "chosen" and "rejected" that do not differ')
    sides = ((chosen, "chosen"), (rejected, "rejected"))
    better, worse = (_answered(prompt, said, field, record) for said, field in sides)
    worse = replace(worse, tools=tools_of(record))
    return replace(better, rejected=worse)


def _answered(prompt: Any, completion: Any, field: str, record: Mapping[str, Any]) -> Conversation:
    """A prompt and what follows it in a field: two texts, or two lists of messages."""
    if isinstance(prompt, str) and isinstance(completion, str):
        if _text(record, "system"):
            raise BrokenDocumentError(
                f'has a "system" beside a "prompt" and a "{field}" that are text; write messages'
            )
        return _plain(prompt, completion)
    if isinstance(prompt, list) and isinstance(completion, list):
        first = _with_system(record, messages_of(prompt, "prompt"))
        return _conversation([*first, *messages_of(completion, field)], len(first))
    raise BrokenDocumentError(
        f'has {type_in_words(prompt)} in "prompt" and {type_in_words(completion)} in '
        f'"{field}" where two texts or two lists of messages were expected'
    )


def _common_text(chosen: str, rejected: str) -> str:
    """The dialogue that two texts begin with, up to what the assistant says last.

    Of other texts it is unknown where the prompt ends: two answers may begin with the same words.
    """
    common = os.path.commonprefix([chosen, rejected])  # noqa: RUF071  of texts, not paths
    before, speaker, _ = common.rpartition(_ASSISTANT)
    if not speaker:
        raise BrokenDocumentError(
            f'has no "prompt", and texts in "chosen" and "rejected" that do not both begin with a '
            f'dialogue up to "{_ASSISTANT}"'
        )
    return before + speaker


def _common_messages(prompt: Any, chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
    """The messages that two conversations begin with, and what follows in each.

    A prompt that is text must be what the user says last in them.
    """
    count = 0
    while count < min(len(chosen), len(rejected)) and chosen[count] == rejected[count]:
        count += 1
    common = messages_of(chosen[:count], "chosen") if count else []
    if count in (0, len(chosen), len(rejected)) or (
        isinstance(prompt, str) and _turn("user", prompt) not in common
    ):
        raise BrokenDocumentError(
            'has conversations in "chosen" and "rejected" that do not begin with the same prompt '
            "and then differ"
        )
    return chosen[:count], chosen[count:], rejected[count:]


_READERS: dict[str, Callable[[Mapping[str, Any]], Conversation]] = {
    "messages": _of_messages,
    "sharegpt": _of_sharegpt,
    "preference": _of_preference,
    "completion": _of_completion,
    "alpaca": _of_alpaca,
}
