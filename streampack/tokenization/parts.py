"""Parts of a turn: thoughts, content and calls of tools, in what a template writes of a message.

The place of the content is found by exchanging it for a text that occurs nowhere else: it is what
lies between the same beginning and the same end. Thoughts and calls of tools that are to be learnt
are exchanged as well; if the text does not change with them, the template leaves them out.

Cost: a rendering for thoughts or calls, and up to three where parts are kept apart.
"""

from __future__ import annotations

from collections.abc import Collection

from streampack.documents.conversations import PARTS
from streampack.tokenization.messages import (
    PROBE,
    answer_of,
    call_probes,
    parts_of,
    with_answer,
    with_probed_calls,
    with_probed_thoughts,
)
from streampack.tokenization.script import Messages, RenderError, Script, Span

_WORDS = {"thinking": "thoughts", "content": "content", "tool_calls": "calls of tools"}


def place_of_content(script: Script, messages: Messages, text: str, i: int) -> Span | None:
    """The characters of the content of message i, or where it would be if it is empty."""
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
    """Raise `RenderError` if what is written of message i lacks its content, to be learnt."""
    if "content" in learn and answer_of(messages[i]).strip() not in written:
        raise RenderError(
            f"has a message {i} of the assistant that the template leaves out in part or rewrites",
            "Use a template that writes the assistant's content as it is.",
        )


def check_extras(script: Script, messages: Messages, i: int, learn: Collection[str]) -> None:
    """Raise `RenderError` if thoughts or calls of message i are to be learnt and not there."""
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
    """The parts of message i, whose turn it is in the text, that are to be learnt, joined where
    they touch: thoughts and all before the content, the content, and calls with the turn's end.

    Raises:
        RenderError: not all are to be learnt, and they cannot be told apart.
    """
    message, (start, stop) = messages[i], turn
    if len(learn) == len(PARTS) or parts_of(message) <= set(learn):
        return [turn]
    place = place_of_content(script, messages, text, i)
    if place is None or not _in_order(script, messages, text, i, place, turn):
        told = " and ".join(_WORDS[part] for part in sorted(parts_of(message)))
        raise RenderError(
            f"has a message {i} whose parts ({told}) cannot be told apart in what the template "
            "writes, and not all of them are learnt",
            'Learn them all: thoughts="keep" and the default learn=.',
        )
    first, end = max(start, place[0]), max(start, place[1])
    if not message.get("tool_calls"):
        end = stop  # what closes the turn belongs to its last part
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
    """True if thoughts stand before the content at `place`, and calls after it."""
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
