"""Positions of a turn's parts, thoughts, content and tool calls, in a template's output.

The content is located by replacing it with a text that occurs nowhere else: it lies between the
common beginning and the common end of the two renderings. Thoughts and tool calls that carry loss
are replaced too; if the text does not change with them, the template leaves them out.

Cost: one rendering for thoughts or tool calls, and up to three if parts are kept apart.
"""

from __future__ import annotations

from collections.abc import Collection

from streampack.chats.conversations import PARTS
from streampack.chats.templates.messages import (
    PROBE,
    answer_of,
    call_probes,
    parts_of,
    with_answer,
    with_probed_calls,
    with_probed_thoughts,
)
from streampack.chats.templates.script import Messages, RenderError, Script, Span

_WORDS = {"thinking": "thoughts", "content": "content", "tool_calls": "calls of tools"}


def place_of_content(script: Script, messages: Messages, text: str, i: int) -> Span | None:
    """Return the span of message i's content, empty for empty content; None if it is not found."""
    probe = script.changed(messages, i, with_answer(messages[i], PROBE))
    if probe is None or probe.count(PROBE) != 1:
        return None
    first = probe.index(PROBE)
    if not text.startswith(probe[:first]):
        return None
    content = answer_of(messages[i]).strip()
    if not content:
        return first, first
    tail = probe[first + len(PROBE) :]
    end = len(text) - len(tail)
    if end < first or not text.endswith(tail) or text[first:end].strip() != content:
        return None
    return first, end


def check_content(messages: Messages, i: int, written: str, learn: Collection[str]) -> None:
    """Raise `RenderError` if message i's content carries loss and is not in its rendering."""
    if "content" in learn and answer_of(messages[i]).strip() not in written:
        raise RenderError(
            f"has a message {i} of the assistant that the template leaves out in part or rewrites",
            "Use a template that writes the assistant's content verbatim.",
        )


def check_extras(script: Script, messages: Messages, i: int, learn: Collection[str]) -> None:
    """Raise `RenderError` if the template omits thoughts or calls of message i that carry loss."""
    message = messages[i]
    wanted = parts_of(message) & set(learn) - {"content"}
    if not wanted:
        return
    probed = message
    if "thinking" in wanted:
        probed = with_probed_thoughts(probed)
    if "tool_calls" in wanted:
        probed = with_probed_calls(probed)
    text = script.changed(messages, i, probed) or ""
    if "tool_calls" in wanted:
        if not all(probe in text for probe in call_probes(message)):
            raise _left_out(i, "tool_calls")
        for probe in call_probes(message):
            text = text.replace(probe, "")
    if "thinking" in wanted and PROBE not in text:
        raise _left_out(i, "thinking", earlier=i < len(messages) - 1)


def learnt_parts(
    script: Script, messages: Messages, text: str, i: int, turn: Span, learn: Collection[str]
) -> list[Span]:
    """Return the spans of message i's parts that carry loss; adjacent ones are joined.

    Thoughts include all text before the content, and tool calls include the end of the turn.

    Args:
        turn: span of the message in `text`.
        learn: `PARTS` that carry loss.

    Raises:
        RenderError: only some parts carry loss, and the parts cannot be told apart.
    """
    message, (start, stop) = messages[i], turn
    if len(learn) == len(PARTS) or parts_of(message) <= set(learn):
        return [turn]
    place = place_of_content(script, messages, text, i)
    if place is None or not _in_order(script, messages, text, i, place, turn):
        told = " and ".join(_WORDS[part] for part in sorted(parts_of(message)))
        raise RenderError(
            f"has a message {i} with parts ({told}) that cannot be told apart in the rendered "
            "text, and not all of them are learnt",
            'Learn them all: thoughts="keep" and the default learn=.',
        )
    first, end = max(start, place[0]), max(start, place[1])
    if not message.get("tool_calls"):
        end = stop  # the closing token belongs to the last part
    cuts = {"thinking": (start, first), "content": (first, end), "tool_calls": (end, stop)}
    spans: list[Span] = []
    for part, span in cuts.items():
        if part not in learn or span[0] >= span[1]:
            continue
        if spans and spans[-1][1] == span[0]:
            span = (spans.pop()[0], span[1])
        spans.append(span)
    return spans


def _in_order(
    script: Script, messages: Messages, text: str, i: int, place: Span, turn: Span
) -> bool:
    """Return True if thoughts come before the content at `place`, and tool calls after it."""
    message, (start, stop) = messages[i], turn
    if not start <= max(start, place[0]) <= max(start, place[1]) <= stop:
        return False
    has = parts_of(message)
    if "thinking" in has:
        other = script.changed(messages, i, with_probed_thoughts(message))
        if other is None or not other.endswith(text[place[1] :]):
            return False
    if "tool_calls" in has:
        other = script.changed(messages, i, with_probed_calls(message))
        if other is None or not other.startswith(text[: place[1]]):
            return False
    return True


def _left_out(i: int, part: str, earlier: bool = False) -> RenderError:
    others = tuple(name for name in PARTS if name != part)
    each = 'Pass turns="each", which learns every turn as the last one, or ' if earlier else "Pass "
    return RenderError(
        f"has {_WORDS[part]} in message {i} that the template leaves out",
        f"{each}learn={others} to learn the rest without them, or use another template.",
    )
