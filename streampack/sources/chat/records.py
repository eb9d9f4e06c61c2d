"""What a chat record holds: a conversation, or token ids with labels.

A record that holds neither raises `BrokenDocumentError`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents import Conversation
from streampack.reading.nesting import parse_json
from streampack.reading.records import BrokenDocumentError, flags_of, ids_of, require_field

__all__ = ["conversation_of", "labelled_ids_of"]

#: Roles that a message may have; the turns of "assistant" are learnt.
ROLES = ("assistant", "developer", "function", "system", "tool", "user")

#: The label of a token without loss, as `torch.nn.CrossEntropyLoss` has it.
IGNORED = -100


def labelled_ids_of(record: Mapping[str, Any]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """(T,) "input_ids" and (T,) where they count, by "loss_mask" or by "labels"."""
    require_field(record, "input_ids")
    ids = ids_of(record, "input_ids")
    if record.get("loss_mask") is not None:
        mask = flags_of(record, "loss_mask", len(ids))
    elif record.get("labels") is not None:
        mask = _labels(record["labels"], ids)
    else:
        raise BrokenDocumentError('has neither "labels" nor "loss_mask" beside "input_ids"')
    if not mask.any():
        raise BrokenDocumentError("has no token that carries loss")
    return ids, mask


def _labels(values: Any, ids: NDArray[np.uint32]) -> NDArray[np.bool_]:
    try:
        labels = np.frombuffer(array("q", values if isinstance(values, list) else ()), np.int64)
    except (TypeError, OverflowError) as error:
        raise BrokenDocumentError(f'has a wrong number in "labels" ({error})') from None
    if len(labels) != len(ids):
        raise BrokenDocumentError(f"has {len(ids)} ids and {len(labels)} labels")
    mask: NDArray[np.bool_] = labels != IGNORED
    if (labels[mask] != ids[mask]).any():
        place = int(np.flatnonzero(mask & (labels != ids))[0])
        raise BrokenDocumentError(
            f"has the label {labels[place]} at token {place}, whose id is {ids[place]}; a label is "
            f"the token's own id or {IGNORED} (it is the model that shifts)"
        )
    return mask


def conversation_of(record: Mapping[str, Any]) -> Conversation:
    """The conversation in "messages", or else in "prompt" and "completion"."""
    tools = _tools(record.get("tools"))
    if record.get("messages") is not None:
        conversation = _conversation(_messages(record["messages"], "messages"), 0, tools)
    elif record.get("prompt") is not None and record.get("completion") is not None:
        conversation = _pair(record["prompt"], record["completion"], tools)
    else:
        names = ", ".join(f'"{name}"' for name in list(record)[:10]) or "none"
        raise BrokenDocumentError(
            f'has neither "messages" nor "prompt" and "completion" (it has {names})'
        )
    messages = conversation.messages
    if not any(conversation.learns(i) and _says_something(m) for i, m in enumerate(messages)):
        raise BrokenDocumentError("has no assistant turn with anything to learn")
    return conversation


def _conversation(
    messages: list[dict[str, Any]], first_learnt: int, tools: Sequence[Any] | None
) -> Conversation:
    """The conversation of these messages, from which the marks of what is learnt are taken."""
    learnt = [(message.pop("weight", 1), message.pop("train", True)) for message in messages]
    left_out = frozenset(i for i, marks in enumerate(learnt) if not all(marks))
    return Conversation(messages, first_learnt, tools, left_out=left_out)


def _pair(prompt: Any, completion: Any, tools: Sequence[Any] | None) -> Conversation:
    if isinstance(prompt, str) and isinstance(completion, str):
        messages = [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": completion},
        ]
        return Conversation(messages, tools=tools, plain=True)
    if isinstance(prompt, list) and isinstance(completion, list):
        first = _messages(prompt, "prompt")
        return _conversation(first + _messages(completion, "completion"), len(first), tools)
    raise BrokenDocumentError(
        f'has a {type(prompt).__name__} in "prompt" and a {type(completion).__name__} in '
        '"completion" where two texts or two lists of messages were expected'
    )


def _says_something(message: Mapping[str, Any]) -> bool:
    return bool(message["content"] or message.get("tool_calls"))


def _messages(values: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not values:
        raise BrokenDocumentError(f'has no list of messages in "{field}"')
    return [_message(value, f'message {i} of "{field}"') for i, value in enumerate(values)]


def _message(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BrokenDocumentError(f"has a {type(value).__name__} as {name}")
    role = value.get("role")
    if role not in ROLES:
        if "from" in value and "value" in value:
            raise BrokenDocumentError(
                f'has "from" and "value" in {name}, where "role" and "content" are expected'
            )
        raise BrokenDocumentError(f"has the role {role!r} in {name}; roles are {', '.join(ROLES)}")
    content = value.get("content")
    if isinstance(content, list):
        content = _joined(content, name)
    if content is None and not (role == "assistant" and value.get("tool_calls")):
        raise BrokenDocumentError(f"has no content in {name}")
    if content is not None and not isinstance(content, str):
        raise BrokenDocumentError(f"has a {type(content).__name__} as content of {name}")
    for mark in ("weight", "train"):
        learnt = value.get(mark)
        if learnt is None:
            continue
        if not isinstance(learnt, bool | int | float) or learnt not in (0, 1):
            raise BrokenDocumentError(
                f"has the {mark} {learnt!r} in {name}; a turn is learnt (1, true) or not (0, false)"
            )
        if learnt and role != "assistant":
            raise BrokenDocumentError(
                f"has the {mark} {learnt!r} in {name}, of the role {role}; only the "
                "assistant's turns are learnt"
            )
    # Tables give every message every field that any has; templates ask what is there.
    fields = {key: _without_nulls(field) for key, field in value.items() if field is not None}
    return {**fields, "content": content}


def _joined(parts: Sequence[Any], name: str) -> str:
    """The text of content that is a list of parts."""
    texts = []
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise BrokenDocumentError(
                f"has a part of the type {kind!r} in {name}; only text is read"
            )
        texts.append(part["text"])
    return "".join(texts)


def _tools(value: Any) -> Sequence[Any] | None:
    if isinstance(value, str):  # as tables hold what differs from row to row
        try:
            value = parse_json(value.encode())
        except ValueError as error:
            raise BrokenDocumentError(f'has a text in "tools" that is not JSON ({error})') from None
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise BrokenDocumentError(f'has a {type(value).__name__} in "tools" instead of a list')
    tools: Sequence[Any] = _without_nulls(value)
    return tools


def _without_nulls(value: Any) -> Any:
    """Nested objects without the fields that are null."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
