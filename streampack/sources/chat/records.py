"""The conversation in a chat record, which has one of the usual shapes.

A record of another shape raises `BrokenDocumentError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from streampack.arguments import type_in_words
from streampack.documents.conversations import Conversation, thoughts_in_fields
from streampack.sources.chat.messages import MARKS, messages_of, tools_of
from streampack.sources.records import BrokenDocumentError

#: Shapes by name, in the order of recognition, with the fields that each needs.
SHAPES: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "preference": ("chosen", "rejected"),
    "completion": ("prompt", "completion"),
    "alpaca": ("instruction", "output"),
}
#: The speaker before the answer in dialogues that are one text, as in HH-RLHF.
_ASSISTANT = "Assistant:"
#: Every field that is read of a record.
RECORD_FIELDS = (
    *dict.fromkeys(name for names in SHAPES.values() for name in names),
    "input", "history", "system", "tools", "functions", "label",
)  # fmt: skip


def known_shapes() -> str:
    """Return the shapes in words: the fields that each needs."""
    shapes = [" and ".join(f'"{name}"' for name in names) for names in SHAPES.values()]
    return f"{', '.join(shapes[:-1])}, or {shapes[-1]}"


def shape_of(names: Collection[str]) -> str | None:
    """Return the shape of a record with these fields; None if it is unknown.

    Raises:
        BrokenDocumentError: the record may be a conversation or a pair.
    """
    fitting = [shape for shape, fields in SHAPES.items() if set(fields) <= set(names)]
    if fitting[1:] and "preference" in fitting[1:]:
        raise BrokenDocumentError(
            f'has "{SHAPES[fitting[0]][0]}" beside "chosen" and "rejected", and either may be '
            f'meant; pass shape="{fitting[0]}" or shape="preference"'
        )
    return fitting[0] if fitting else None


def conversation_of(record: Mapping[str, Any], shape: str | None = None) -> Conversation:
    """Return the conversation in a record of the given shape; None recognises it by the fields."""
    present = [name for name, value in record.items() if value is not None]
    shape = shape_of(present) if shape is None else shape
    if shape is None or not set(SHAPES[shape]) <= set(present):
        names = ", ".join(f'"{name}"' for name in list(record)[:10]) or "none"
        wanted = known_shapes() if shape is None else " and ".join(SHAPES[shape])
        raise BrokenDocumentError(f"needs {wanted} (it has {names})")
    conversation = replace(_READERS[shape](record), tools=tools_of(record))
    for side in filter(None, (conversation, conversation.rejected)):
        messages = side.messages
        if not any(side.learns(i) and _has_content(m) for i, m in enumerate(messages)):
            raise BrokenDocumentError("has no assistant turn that carries loss")
    return conversation


def _has_content(message: Mapping[str, Any]) -> bool:
    return bool(message["content"] or message.get("tool_calls") or thoughts_in_fields(message))


def _conversation(messages: list[dict[str, Any]], first_learnt: int = 0) -> Conversation:
    """Make a conversation of messages; move their marks of learnt turns out of them."""
    learnt = [[message.pop(mark, True) for mark in MARKS] for message in messages]
    left_out = frozenset(i for i, marks in enumerate(learnt) if not all(marks))
    return Conversation(messages, first_learnt, left_out=left_out)


def _plain(prompt: str, completion: str) -> Conversation:
    return Conversation([_turn("user", prompt), _turn("assistant", completion)], plain=True)


def _turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _text(record: Mapping[str, Any], name: str) -> str:
    """Return the text in a field, which may be missing."""
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise BrokenDocumentError(f'has {type_in_words(value)} in "{name}" where text is read')
    return value or ""


def _with_system(record: Mapping[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages after the system message, if a separate field holds that."""
    system = _text(record, "system")
    if not system:
        return messages
    if messages[0]["role"] == "system":
        if messages[0]["content"] != system:
            raise BrokenDocumentError('has both a "system" field and a system message')
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
    turns = [_turn("user", "\n".join(asked)), _turn("assistant", _text(record, "output"))]
    return _conversation(_with_system(record, before + turns))


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
    better, worse = (_answered(prompt, side, field, record) for side, field in sides)
    worse = replace(worse, tools=tools_of(record))
    return replace(better, rejected=worse)


def _answered(prompt: Any, completion: Any, field: str, record: Mapping[str, Any]) -> Conversation:
    """Return a prompt and its continuation in a field: two texts, or two lists of messages."""
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
    """Return the common dialogue of two texts, up to the assistant's last turn.

    In other texts the end of the prompt is unknown: two answers may begin with the same words.
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
    """Return the common first messages of two conversations, and the continuation of each.

    A prompt that is text must be the user's last message in them.
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
