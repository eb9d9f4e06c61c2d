"""Parts of the assistant's messages, and special tokens in rendered texts.

A message may have thoughts, content and tool calls (`PARTS` of `conversations`). Thoughts are in a
field of their own, or at the start of the content up to ``</think>``. To locate a part in a
template's output, it is replaced by a text that occurs nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from streampack.chats.conversations import MEDIA_PARTS, THOUGHT_FIELDS, thoughts_in_fields
from streampack.files.json_records import parse_json

Message = Mapping[str, Any]

#: A text that occurs in no other text: characters of the private use area.
PROBE = "\ue0f0\ue0f1\ue0f0"
_OPEN, _CLOSE = "<think>", "</think>"
_MARK = re.compile(f"({'|'.join(MEDIA_PARTS)})")


def parts_of(message: Message) -> set[str]:
    """Return the `PARTS` that the message has."""
    content = message.get("content")
    thinks = bool(content and _CLOSE in content)  # rarely true, and cheaper than to split
    parts = {"content"} if (answer_of(message) if thinks else content or "").strip() else set()
    if thoughts_in_fields(message) or (thinks and _thoughts_in_content(message)):
        parts.add("thinking")
    if message.get("tool_calls"):
        parts.add("tool_calls")
    return parts


def answer_of(message: Message) -> str:
    """Return the content without thoughts at its start."""
    return _split(message)[1]


def with_answer(message: Message, answer: str) -> Message:
    """Replace the answer and keep the thoughts before it."""
    return {**message, "content": _split(message)[0] + answer}


def without_thoughts(message: Message) -> Message:
    """Remove the thoughts in fields and content."""
    kept = {name: value for name, value in message.items() if name not in THOUGHT_FIELDS}
    head, answer = _split(message)
    return {**kept, "content": answer.lstrip()} if head else kept


def with_probed_thoughts(message: Message) -> Message:
    """Replace the thoughts by `PROBE`."""
    changed: dict[str, Any] = dict.fromkeys(thoughts_in_fields(message), PROBE)
    if thought := _thoughts_in_content(message):
        head, answer = _split(message)
        changed["content"] = head.replace(thought, PROBE, 1) + answer
    return {**message, **changed}


def with_probed_calls(message: Message) -> Message:
    """Replace the function name of every tool call by a probe."""
    calls = []
    for call, probe in zip(message["tool_calls"], call_probes(message), strict=True):
        function = call.get("function")
        if isinstance(function, Mapping):
            calls.append({**call, "function": {**function, "name": probe}})
        else:
            calls.append({**call, "name": probe})
    return {**message, "tool_calls": calls}


def call_probes(message: Message) -> list[str]:
    """Return a distinct text for every tool call, none a substring of another."""
    return [f"{PROBE}{i}\ue0f2" for i in range(len(message.get("tool_calls") or ()))]


def forms(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the messages in the forms that templates expect, starting with the original one.

    Missing content beside tool calls becomes "", since many templates would write "None". The
    arguments of tool calls are tried as they are, then as objects, then as JSON text.
    """
    seen: list[list[Message]] = []
    for form in (_as_it_is, _as_object, _as_text):
        formed = [_in_form(message, form) for message in messages]
        if formed not in seen:
            seen.append(formed)
            yield formed


def writes_arguments(messages: Sequence[Message], text: str) -> bool:
    """Return True if a template has written arguments in JSON text verbatim.

    A template that expects objects would quote the text as a JSON string, or omit it.
    """
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    texts = [arguments for call in calls if isinstance(arguments := _arguments_of(call), str)]
    return all(
        given.strip() in text and not any(form in text for form in _quoted(given))
        for given in texts
        if _as_object(given) is not given
    )


def _arguments_of(call: Any) -> Any:
    inner = call.get("function") if isinstance(call, Mapping) else None
    held = inner if isinstance(inner, Mapping) else call
    return held.get("arguments") if isinstance(held, Mapping) else None


def _quoted(text: str) -> list[str]:
    """Return the text as JSON strings, without quotes if escapes already distinguish it."""
    forms = [json.dumps(text, ensure_ascii=False), json.dumps(text)]
    return [quoted if quoted[1:-1] == text else quoted[1:-1] for quoted in forms]


def with_parts(messages: Sequence[Message]) -> list[Message]:
    """Turn every content into a list of parts: texts, images, films and sounds."""
    return [{**message, "content": _parts(message.get("content") or "")} for message in messages]


def has_images(messages: Sequence[Message]) -> bool:
    """Return True if a message has the mark of an image, a film or a sound."""
    return any(_MARK.search(message.get("content") or "") for message in messages)


def _parts(content: str) -> list[dict[str, str]]:
    pieces = _MARK.split(content)
    return [
        {"type": MEDIA_PARTS[piece]} if piece in MEDIA_PARTS else {"type": "text", "text": piece}
        for piece in pieces
        if piece or not pieces[1:]
    ]


def _in_form(message: Message, form: Any) -> Message:
    calls = message.get("tool_calls")
    if not calls and message.get("content") is not None:
        return message
    changed = {**message, "content": message.get("content") or ""}
    if isinstance(calls, list) and calls:
        changed["tool_calls"] = [_with_arguments(call, form) for call in calls]
    return changed


def _with_arguments(call: Any, form: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _with_arguments(call["function"], form)}
    return {**call, "arguments": form(call["arguments"])} if "arguments" in call else call


def _as_it_is(arguments: Any) -> Any:
    return arguments


def _as_object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = parse_json(arguments.encode())
    except ValueError:  # not JSON: return the text itself
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _as_text(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _split(message: Message) -> tuple[str, str]:
    """Split the content after its thoughts and the white space after them."""
    content = message.get("content") or ""
    head, close, answer = content.rpartition(_CLOSE)
    space = len(answer) - len(answer.lstrip()) if close else 0
    return head + close + answer[:space], answer[space:]


def _thoughts_in_content(message: Message) -> str:
    head = _split(message)[0].rpartition(_CLOSE)[0]
    return head.partition(_OPEN)[2].strip() if _OPEN in head else head.strip()


_SPACE = re.compile(r"\s*")


class SpecialTokens:
    """Search for the texts of special tokens."""

    def __init__(self, texts: Iterable[str]) -> None:
        known = sorted((text for text in texts if text), key=len, reverse=True)
        alternatives = "|".join(map(re.escape, known)) or "(?!)"
        self._any = re.compile(alternatives)
        self._at_end = re.compile(f"(?:{alternatives})\\Z")
        self._longest = len(known[0]) if known else 0

    def found(self, text: str) -> list[tuple[str, int]]:
        """Return the special tokens in a text with their end positions."""
        return [(match.group(), match.end()) for match in self._any.finditer(text)]

    def end(self, text: str, start: int) -> int | None:
        """Return the end of the special token that begins at `start`, or None."""
        match = self._any.match(text, start)
        return match.end() if match else None

    def ends(self, text: str, start: int, stop: int) -> bool:
        """Return True if text[start:stop] ends with a special token."""
        return self._at_end.search(text, max(start, stop - self._longest), stop) is not None

    def closed(self, text: str, start: int, stop: int, *, by_next: bool = True) -> tuple[int, int]:
        """Return the span up to its closing special token, without trailing white space.

        If the span has no closing token and `by_next` is true, the special token after it counts.
        """
        content_stop = start + len(text[start:stop].rstrip())
        if self.ends(text, start, content_stop):
            return start, content_stop
        following = self.end(text, stop) if by_next else None
        return start, stop if following is None else following


def after_space(text: str, start: int) -> int:
    """Return the position after the white space at `start`."""
    space = _SPACE.match(text, start)
    return space.end() if space else start
