"""Turns: where a message of the assistant stands in a rendered conversation, and its parts in it.

A turn is found by rendering the conversation up to it:

  1. before = the messages before the turn, with the generation prompt;
     after = the messages up to the turn, and the turn;
  2. the turn is the part of `after` that follows `before`, if `after` starts with `before` and the
     whole conversation starts with `after`; that part must hold the content of the message;
  3. if the template has no generation prompt, or its turns do not begin with it, the messages
     before the turn must be a prefix all the same. The turn begins where renderings
     with different contents begin to differ from it;
  4. if the conversation does not start with `after`, because the template writes the last turn
     differently from earlier ones, the turn reaches from its content as far as the same text
     follows that content in both, or up to a special token that closes it;
  5. anything else is refused: a guess would teach the model the user's words, or not its own.

The place of the content is found by exchanging it for a text that occurs nowhere else: it is what
lies between the same beginning and the same end. Thoughts and calls of tools that are to be learnt
are exchanged as well; if the text does not change with them, the template leaves them out.

Cost: two renderings per turn (four without generation prompt), one more with thoughts or calls, and
up to three where parts are kept apart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

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
from streampack.tokenization.special import SpecialTokens, after_space

Message = Mapping[str, Any]
Span = tuple[int, int]
#: The text of messages, with the generation prompt or without.
Render = Callable[[Sequence[Message], bool], str]

MARK_REMEDY = "Mark the assistant's turns with {% generation %} blocks, end-of-turn token included."
_WORDS = {"thinking": "thoughts", "content": "content", "tool_calls": "calls of tools"}


class RenderError(Exception):
    """Why a conversation cannot be rendered; ends the sentence "document X ...".

    `remedy` says what to do, and `setting` is the argument that it is about.
    """

    def __init__(self, reason: str, remedy: str = "", setting: str | None = None) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy
        self.setting = setting


class Turns:
    """The assistant's turns in `text`, which is all messages rendered.

    `prompted` is True if the template has a generation prompt, `alone` if only the last turn is
    wanted, as it is when it is generated.
    """

    def __init__(
        self,
        render: Render,
        prompted: bool,
        special: SpecialTokens,
        messages: Sequence[Message],
        text: str,
        alone: bool = False,
    ) -> None:
        self._render = render
        self._prompted = prompted
        self._special = special
        self._messages = messages
        self._text = text
        self._alone = alone

    def turn(self, i: int, learn: Collection[str]) -> Span:
        """The characters of message i, which has all of its parts that are to be learnt.

        Raises:
            RenderError: it cannot be found, or the template leaves out a part.
        """
        self.check_extras(i, learn)
        start = self._start(i)
        stop = self._stop(i, start)
        self.check_content(i, start, stop, learn)
        return start, stop

    def check_content(self, i: int, start: int, stop: int, learn: Collection[str]) -> None:
        """Raise `RenderError` if text[start:stop] lacks the content of message i, to be learnt."""
        if (
            "content" in learn
            and answer_of(self._messages[i]).strip() not in self._text[start:stop]
        ):
            raise RenderError(
                f"has a message {i} of the assistant that the template leaves out in part or "
                "rewrites",
                "Use a template that writes the assistant's content as it is.",
            )

    def check_extras(self, i: int, learn: Collection[str]) -> None:
        """Raise `RenderError` if thoughts or calls of message i are to be learnt and not there."""
        wanted = parts_of(self._messages[i]) & set(learn) - {"content"}
        if wanted:
            self._check_written(i, wanted)

    def parts(self, i: int, start: int, stop: int, learn: Collection[str]) -> list[Span]:
        """The parts of message i, in text[start:stop], that are to be learnt, joined where they
        touch: thoughts and all before the content, the content, and calls with the turn's end.

        Raises:
            RenderError: not all are to be learnt, and they cannot be told apart.
        """
        if len(learn) == len(PARTS) or parts_of(self._messages[i]) <= set(learn):
            return [(start, stop)]
        message = self._messages[i]
        place = self._content(self._messages, self._text, i)
        if place is None or not self._in_order(i, place, start, stop):
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

    # ------------------------------------------------------------------ where a turn begins

    def as_generated(self) -> str:
        """The text, with the messages before the last turn as they are when it is generated.

        Some templates write a turn's context otherwise once there is the turn, for example without
        the thoughts of calls that it answers. Then what is prompted for takes the place of the
        text up to the turn, if both end with the same generation prompt.
        """
        text, last = self._text, len(self._messages) - 1
        before = self._render(self._messages[:last], True)
        history = self._render(self._messages[:last], False)
        prompt = before.removeprefix(history)
        if text.startswith((before, history)) or not before.startswith(history) or not prompt:
            return text
        header = self._after_header(last, 0) or 0
        begin = text.rfind(prompt, 0, header)
        return text if begin < 0 else before + text[begin + len(prompt) :]

    def _start(self, i: int) -> int:
        text, prompted = self._text, self._prompted
        before = "" if i == 0 and not prompted else self._render(self._messages[:i], prompted)
        found: int | None = None
        if text.startswith(before):
            written = prompted and self._is_prompted(i, before)
            found = len(before) if written else self._after_header(i, len(before))
        elif prompted:
            history = self._render(self._messages[:i], False)
            if text.startswith(history):
                if self._alone:
                    raise _not_as_prompted(i, before.removeprefix(history))
                place = self._content(self._messages, text, i)
                found = self._after_header(i, len(history)) if place else None
                found = min(found, place[0]) if found is not None and place else None
        if found is None:
            raise _rewritten(f"what comes before message {i}", self._alone)
        return found

    def _is_prompted(self, i: int, before: str) -> bool:
        """Whether `before` ends with a generation prompt; some write none after an answer."""
        if i == 0 or self._messages[i - 1]["role"] != "assistant":
            return True
        return before != self._render(self._messages[:i], False)

    def _after_header(self, i: int, least: int) -> int | None:
        """Where renderings of turn i with different contents begin to differ from the text."""
        turns = [{"role": "assistant", "content": content} for content in ("a", "b")]
        probes = [self._render([*self._messages[:i], turn], False) for turn in turns]
        start = len(os.path.commonprefix([*probes, self._text]))  # noqa: RUF071  of texts, not paths
        return start if start >= least else None

    # ------------------------------------------------------------------ where it ends

    def _stop(self, i: int, start: int) -> int:
        messages, text = self._messages, self._text
        if i == len(messages) - 1:
            return len(text)
        after = self._render(messages[: i + 1], False)
        if text.startswith(after) and len(after) >= start:
            return len(after)
        here = self._content(messages, text, i)
        if here is not None and here[0] >= start:
            there = self._content(messages[: i + 1], after, i)
            if there is not None and text.startswith(after[there[1] :], here[1]):
                return here[1] + len(after) - there[1]
            closing = self._special.end(text, after_space(text, here[1]))
            if closing is not None and not messages[i].get("tool_calls"):
                return here[1] if self.opens_answer(i, start, here[1]) else closing
        raise _rewritten(f"message {i}", self._alone)

    def _content(self, messages: Sequence[Message], text: str, i: int) -> Span | None:
        """The characters of the content of message i, or where it would be if it is empty."""
        probe = self._changed(messages, i, with_answer(messages[i], PROBE))
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

    def opens_answer(self, i: int, start: int, stop: int) -> bool:
        """Whether the token after message i, text[start:stop], is the header of another answer."""
        following = self._messages[i + 1 : i + 2]
        if not following or following[0]["role"] != "assistant":
            return False
        text = self._text
        begin = after_space(text, stop)
        token = text[begin : self._special.end(text, begin)]
        return bool(token) and text[:start].rstrip().endswith(token)

    # ------------------------------------------------------------------ its parts

    def _check_written(self, i: int, wanted: Collection[str]) -> None:
        message = self._messages[i]
        probed = message
        if "thinking" in wanted:
            probed = with_probed_thoughts(probed)
        if "tool_calls" in wanted:
            probed = with_probed_calls(probed)
        text = self._changed(self._messages, i, probed)
        if "tool_calls" in wanted and not (
            text is not None and all(probe in text for probe in call_probes(message))
        ):
            raise _left_out(i, "tool_calls")
        if text is not None and "tool_calls" in wanted:
            for probe in call_probes(message):
                text = text.replace(probe, "")
        if "thinking" in wanted and not (text is not None and PROBE in text):
            raise _left_out(i, "thinking", earlier=i < len(self._messages) - 1)

    def _in_order(self, i: int, place: Span, start: int, stop: int) -> bool:
        """True if thoughts stand before the content at `place`, and calls after it."""
        message, text = self._messages[i], self._text
        if not start <= max(start, place[0]) <= max(start, place[1]) <= stop:
            return False
        has = parts_of(message)
        if "thinking" in has:
            other = self._changed(self._messages, i, with_probed_thoughts(message))
            if other is None or not other.endswith(text[place[1] :]):
                return False
        if "tool_calls" in has:
            other = self._changed(self._messages, i, with_probed_calls(message))
            if other is None or not other.startswith(text[: place[1]]):
                return False
        return True

    def _changed(self, messages: Sequence[Message], i: int, message: Message) -> str | None:
        """The text with another message i; None if the template refuses it."""
        try:
            return self._render([*messages[:i], message, *messages[i + 1 :]], False)
        except RenderError:
            return None


def _rewritten(what: str, alone: bool) -> RenderError:
    each = "" if alone else 'Pass turns="each", which makes a document of every turn; or mark'
    return RenderError(
        f"looks different up to {what} than as a whole (the template rewrites or leaves out "
        "earlier turns), so the assistant's turn cannot be found",
        f"{each or 'Mark'} the turns with {{% generation %}} blocks, or use a template that "
        "renders a turn the same whatever follows it.",
    )


def _not_as_prompted(i: int, prompt: str) -> RenderError:
    closed = "</think>" in prompt  # it tells the model not to think, and the message has thoughts
    return RenderError(
        f"has a message {i} that does not begin with the template's generation prompt, "
        f"{prompt[-80:]!r}, so what would be learnt is never asked for",
        f'Pass template_kwargs= that change the prompt, such as {{"enable_thinking": {closed}}}; '
        f"{'take out its thoughts' if closed else 'give the message its thoughts'}; or pass "
        'turns="whole".',
    )


def _left_out(i: int, part: str, earlier: bool = False) -> RenderError:
    others = tuple(name for name in PARTS if name != part)
    each = 'Pass turns="each", which learns every turn as the last one, or ' if earlier else "Pass "
    return RenderError(
        f"has {_WORDS[part]} in message {i} that the template leaves out",
        f"{each}learn={others} to learn the rest without them, or use another template.",
    )
