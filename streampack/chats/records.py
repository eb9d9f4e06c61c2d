"""The conversation in a chat record, which has one of the usual shapes.

A record of another shape raises `BrokenDocumentError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from streampack.arguments import type_in_words
from streampack.chats.conversations import Conversation, thoughts_in_fields
from streampack.chats.fields import messages_of, tools_of
from streampack.chats.marks import BESIDE
from streampack.sources.records import BrokenDocumentError

#: Shapes by name, in the order of recognition, with the fields that each needs.
SHAPES: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "preference": ("chosen", "rejected"),
    "completion": ("prompt", "completion"),
    "alpaca": ("instruction", "output"),
}
#: Fields with the messages of a prompt, the first that a record has.
PROMPTS = ("prompt", "messages", "conversations")
#: Names of the sides of a pair in LLaMA-Factory.
_RENAMED = {"chosen_messages": "chosen", "rejected_messages": "rejected"}
#: Names of a rejected answer beside the chosen one in "messages", in ms-swift.
_REJECTED = ("rejected_response", "rejected_messages")
#: The speaker before the answer in dialogues that are one text, as in HH-RLHF.
_ASSISTANT = "Assistant:"
#: Fields that are read since revision 2 of the reading of records, which covers them in states.
ADDED_FIELDS = (*_RENAMED, "rejected_response", *(name for name in BESIDE if name != "label"))
#: Every field that is read of a record.
RECORD_FIELDS = (
    *dict.fromkeys(name for names in SHAPES.values() for name in names),
    "input", "history", "system", "tools", "functions", "label", *ADDED_FIELDS,
)  # fmt: skip


def known_shapes() -> str:
    """Return the shapes in words: the fields that each needs."""
    shapes = [" and ".join(f'"{name}"' for name in names) for names in SHAPES.values()]
    return f"{', '.join(shapes[:-1])}, or {shapes[-1]}"


def shape_of(names: Collection[str]) -> str | None:
    """Return the shape that a record with these fields may have; None if there is none.

    Raises:
        BrokenDocumentError: the record may be a conversation or a pair.
    """
    known = {_RENAMED.get(name, name) for name in names}
    fitting = [shape for shape, fields in SHAPES.items() if known >= {*fields}]
    if "preference" in fitting[1:] and (fitting[0] == "alpaca" or "prompt" in known):
        raise _ambiguous(fitting[0], SHAPES["preference"])
    return fitting[0] if fitting else None


def _ambiguous(shape: str, sides: Collection[str]) -> BrokenDocumentError:
    named = " and ".join(f'"{name}"' for name in sides)
    return BrokenDocumentError(
        f'has "{SHAPES[shape][0]}" beside {named}, and either may be meant; pass shape="{shape}", '
        'or shape="preference" and pairs in "chosen" and "rejected"'
    )


def _recognised(record: Mapping[str, Any]) -> str | None:
    """Return the shape of a record; None if it is unknown.

    A pair that LLaMA-Factory ranks has its prompt in "messages" or "conversations", and each answer
    as one message.

    Raises:
        BrokenDocumentError: the record may be a conversation or a pair.
    """
    shape = shape_of(record)
    if shape in ("messages", "sharegpt"):
        sides = [name for name in SHAPES["preference"] if name in record]
        if sides[1:] and all(isinstance(record[name], dict) for name in sides):
            return "preference"
        sides = sides if sides[1:] else [name for name in _REJECTED if name in record]
        if sides:
            raise _ambiguous(shape, sides)
    return shape


def conversation_of(record: Mapping[str, Any], shape: str | None = None) -> Conversation:
    """Return the conversation in a record of the given shape; None recognises it by the fields."""
    present = {name: value for name, value in record.items() if value is not None}
    if "chosen" not in present and "chosen_messages" in present:  # the name in LLaMA-Factory
        present = {_RENAMED.get(name, name): value for name, value in present.items()}
    shape = _recognised(present) if shape is None else shape
    if shape is None or not set(SHAPES[shape]) <= set(present):
        names = ", ".join(f'"{name}"' for name in list(record)[:10]) or "none"
        wanted = known_shapes() if shape is None else " and ".join(SHAPES[shape])
        raise BrokenDocumentError(f"needs {wanted} (it has {names})")
    conversation = replace(_READERS[shape](present), tools=tools_of(record))
    for side in filter(None, (conversation, conversation.rejected)):
        messages = side.messages
        if not any(side.learns(i) and _has_content(m) for i, m in enumerate(messages)):
            raise BrokenDocumentError("has no assistant turn that carries loss")
    return conversation


def prompt_of(record: Mapping[str, Any]) -> Conversation:
    """Return the messages of a record that the assistant is to answer."""
    name = next((name for name in PROMPTS if record.get(name) is not None), PROMPTS[0])
    messages = _with_system(record, messages_of(record.get(name), name))
    if messages[-1]["role"] == "assistant":
        raise BrokenDocumentError(
            f'ends with an answer of the assistant in "{name}", where a prompt ends before it'
        )
    return replace(_conversation(messages), tools=tools_of(record))


def _has_content(message: Mapping[str, Any]) -> bool:
    return bool(message["content"] or message.get("tool_calls") or thoughts_in_fields(message))


def _conversation(messages: list[dict[str, Any]], first_learnt: int = 0) -> Conversation:
    """Make a conversation of messages; take the marks of turns that are not learnt from them."""
    learnt = [message.pop("train", True) for message in messages]
    left_out = frozenset(i for i, is_learnt in enumerate(learnt) if not is_learnt)
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
    answer = _turn("assistant", _text(record, "output"))
    return _conversation([*_alpaca_prompt(record), answer])


def _alpaca_prompt(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages before the output: the system's, the history, and the instruction."""
    before: list[dict[str, Any]] = []
    history = record.get("history") or []
    for pair in history if isinstance(history, list) else [history]:
        if not (
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(t, str) for t in pair)
        ):
            raise BrokenDocumentError('has no list of pairs of texts in "history"')
        before += [_turn("user", pair[0]), _turn("assistant", pair[1])]
    asked = [text for text in (_text(record, "instruction"), _text(record, "input")) if text]
    return _with_system(record, [*before, _turn("user", "\n".join(asked))])


def _of_completion(record: Mapping[str, Any]) -> Conversation:
    return _answered(record["prompt"], record["completion"], "completion", record)


def _of_preference(record: Mapping[str, Any]) -> Conversation:
    prompt, chosen, rejected = record.get("prompt"), record["chosen"], record["rejected"]
    texts = isinstance(chosen, str) and isinstance(rejected, str)
    if isinstance(chosen, dict) and isinstance(rejected, dict):
        prompt = prompt or record.get("messages") or record.get("conversations")
        prompt = [_turn("user", prompt)] if isinstance(prompt, str) else prompt
        chosen, rejected = [chosen], [rejected]
    if prompt is None and texts and "instruction" in record:
        prompt, record = _alpaca_prompt(record), {**record, "system": None}
        chosen, rejected = ([_turn("assistant", side)] for side in (chosen, rejected))
    elif prompt is None and texts:
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
    known = ("prompt", "messages", "conversations")
    named = next((name for name in known if record.get(name) is prompt), field)
    if isinstance(prompt, list) and isinstance(completion, list):
        first = _with_system(record, messages_of(prompt, named))
        return _conversation([*first, *messages_of(completion, field)], len(first))
    raise BrokenDocumentError(
        f'has {type_in_words(prompt)} in "{named}" and {type_in_words(completion)} in '
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
    asked = [message["content"] for message in common if message["role"] == "user"]
    if count in (0, len(chosen), len(rejected)) or (
        isinstance(prompt, str) and prompt not in asked
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
