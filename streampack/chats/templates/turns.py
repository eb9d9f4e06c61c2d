"""Location of the assistant's turns in a rendered conversation, and the characters with loss.

If the template marks the assistant's turns (with ``{% generation %}`` blocks, as in transformers),
the marks count. Otherwise a turn is located by rendering the conversation up to it:

  1. before = the messages before the turn, with the generation prompt;
     after = the messages up to the turn, and the turn;
  2. the turn is the part of `after` that follows `before`, if `after` starts with `before` and the
     whole conversation starts with `after`; that part must hold the content of the message;
  3. if the template has no generation prompt, or its turns do not begin with it, the messages
     before the turn must still be a prefix. The turn begins where renderings with different
     contents begin to differ from it;
  4. if the conversation does not start with `after`, because the template writes the last turn
     differently from earlier ones, the turn reaches from its content as far as the same text
     follows that content in both, or up to a special token that closes it;
  5. anything else is refused, because a guess could train on the user's words or omit the
     assistant's.

A turn ends with the special token that closes it. White space after that token is not part of the
turn; a special token that directly follows the turn is.

With turns="each" every learnt turn is a text of its own: the messages before it, rendered with the
generation prompt, and the turn.

Cost: two renderings per turn (four without a generation prompt), plus the renderings of `parts`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streampack.chats.conversations import PARTS, Conversation, TurnRules
from streampack.chats.templates.messages import after_space, parts_of, without_thoughts
from streampack.chats.templates.parts import (
    check_content,
    check_extras,
    learnt_parts,
    place_of_content,
)
from streampack.chats.templates.script import Messages, RenderError, Script, Span

_MARK_REMEDY = (
    "Mark the assistant's turns with {% generation %} blocks, end-of-turn token included."
)
_ONE_FOR_EACH = "Use a template with one {% generation %} block for each turn."


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as text.

    Attributes:
        text: the whole text.
        spans: (start, stop) characters that carry loss, in order and not empty.
        closed: False if the last message is the assistant's and no special token ends it.
    """

    text: str
    spans: list[Span]
    closed: bool


def rendered(
    script: Script, conversation: Conversation, text: str, marks: Sequence[int], rules: TurnRules
) -> list[Rendered]:
    """Return the conversation as one text, or as one text per learnt turn.

    Args:
        script: the bound template.
        conversation: the conversation, in the form that the template takes.
        text, marks: the script's rendering of it.
        rules: choice of the parts that carry loss.

    Raises:
        RenderError: the assistant's parts cannot be located, or no part carries loss.
    """
    if rules.turns == "prompt":
        return [Rendered(script.text(conversation.messages, True), [], closed=True)]
    if rules.turns == "whole":
        return [_with_spans(script, conversation, text, marks, rules)]
    learnt = learnt_turns(conversation, rules)
    if not learnt:
        raise _nothing()
    return [_alone(script, conversation, i, rules) for i in learnt]


def rendered_part(
    script: Script, part: Conversation, following: Messages, rules: TurnRules
) -> Rendered:
    """Return a part of a conversation, which ends with a learnt turn, as one text.

    Args:
        script: the bound template.
        part: the part, in the form that the template takes.
        following: the message after it, or nothing.
        rules: choice of the parts of turns that carry loss; with turns="each" the last turn alone.

    Raises:
        RenderError: the template refuses the part, or its turns cannot be located.
    """
    if rules.turns == "each":
        messages = [*part.messages, *following]
        return _alone(script, replace(part, messages=messages), len(part.messages) - 1, rules)
    text, marks = script.render(part.messages, False)
    turn = _with_spans(script, part, text, marks, rules)
    return _closed_by(script, part.messages, following, turn)


def learnt_turns(conversation: Conversation, rules: TurnRules) -> list[int]:
    """Return the indices of the messages with parts that carry loss."""
    messages, wanted = conversation.messages, set(rules.learn)
    learnt = [i for i in range(len(messages)) if conversation.learns(i)]
    if rules.learn == PARTS:
        return learnt
    return [i for i in learnt if parts_of(messages[i]) & wanted]


def _alone(script: Script, conversation: Conversation, i: int, rules: TurnRules) -> Rendered:
    """Render turn i after the messages before it, as the model would generate it."""
    messages = list(conversation.messages[: i + 1])
    if rules.thoughts == "strip-history":
        messages[:i] = [
            without_thoughts(message) if message["role"] == "assistant" else message
            for message in messages[:i]
        ]
    part = replace(conversation, messages=messages, first_learnt=i, left_out=frozenset())
    text, marks = script.render(messages, False)
    if script.prompted and not script.marked:
        text = _as_generated(script, messages, script.turns_in(text))
    turn = _with_spans(script, part, text, marks, rules, alone=True)
    return _closed_by(script, messages, conversation.messages[i + 1 : i + 2], turn)


def _closed_by(script: Script, messages: Messages, following: Messages, turn: Rendered) -> Rendered:
    """Return the text of `messages`, with the first token of the next turn if that closes it.

    A token that begins the next turn closes this one in some templates: the model stops at it.
    """
    if turn.closed or [message["role"] for message in following] in ([], ["assistant"]):
        return turn
    text, _ = script.render([*messages, *following], False)
    stop = script.special.end(text, len(turn.text))
    if stop is None or not text.startswith(turn.text):
        return turn
    spans = [*turn.spans[:-1], (turn.spans[-1][0], stop)]
    return Rendered(text[:stop], spans, closed=True)


def _as_generated(script: Script, messages: Messages, text: str) -> str:
    """Return the text with the last turn's context as it is when the turn is generated.

    Some templates change a turn's context once the turn exists, for example by dropping the
    thoughts of the tool calls that it answers. The prompt then replaces the text up to the turn, if
    both end with the same generation prompt.
    """
    before, history = (script.text(messages[:-1], prompt) for prompt in (True, False))
    prompt = before.removeprefix(history)
    if text.startswith((before, history)) or not before.startswith(history) or not prompt:
        return text
    header = _Turns(script, messages, text).after_header(len(messages) - 1, 0) or 0
    begin = text.rfind(prompt, 0, header)
    stop = begin + len(prompt)
    answers = messages[-2:-1] and messages[-2]["role"] == "assistant"
    continues = answers and text[stop:header].strip()  # the turn begins with another answer
    return text if begin < 0 or continues else before + text[stop:]


def _with_spans(
    script: Script,
    conversation: Conversation,
    text: str,
    marks: Sequence[int],
    rules: TurnRules,
    alone: bool = False,
) -> Rendered:
    """Locate the spans that carry loss in a text; with `alone` only in its last turn."""
    messages, special = conversation.messages, script.special
    learnt, learn = learnt_turns(conversation, rules), rules.learn
    if script.marked:
        spans = _marked(script, conversation, text, marks, learnt, learn)
    else:
        spans = _found(script, messages, text, learnt, learn, alone)
    spans = [(start, stop) for start, stop in spans if start < stop]
    if not spans:
        raise _nothing()
    ends = messages[-1]["role"] == "assistant" and not text[spans[-1][1] :].strip()
    return Rendered(text, spans, closed=not ends or special.ends(text, *spans[-1]))


# ---------------------------------------------------------------------- turns that are marked


def _marked(
    script: Script,
    conversation: Conversation,
    text: str,
    marks: Sequence[int],
    learnt: Sequence[int],
    learn: Sequence[str],
) -> list[Span]:
    """Return the spans that the template marks in learnt turns."""
    messages = conversation.messages
    spans = [  # an empty block is a turn without a token
        script.special.closed(text, start, stop) if start < stop else (start, stop)
        for start, stop in zip(marks[::2], marks[1::2], strict=True)
    ]
    for i in learnt:
        check_extras(script, messages, i, learn)
    all_turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if len(all_turns) == len(spans):
        kept = [(i, span) for i, span in zip(all_turns, spans, strict=True) if i in learnt]
        body = script.turns_in(text)
        for i, (start, stop) in kept:
            check_content(messages, i, body[start:stop], learn)
        return [
            part
            for i, turn in kept
            for part in learnt_parts(script, messages, body, i, turn, learn)
        ]
    if conversation.left_out or tuple(learn) != PARTS:
        raise RenderError(
            f"has turns or parts that are not learnt, and the template marks {len(spans)} "
            f"parts of {len(all_turns)} turns of the assistant",
            _ONE_FOR_EACH,
        )
    if conversation.first_learnt:
        before, _ = script.render(messages[: conversation.first_learnt], False)
        if not text.startswith(before):
            raise RenderError(
                "looks different up to the prompt than as a whole, so the text after the prompt "
                "cannot be found",
                _ONE_FOR_EACH,
            )
        spans = [span for span in spans if span[0] >= len(before)]
    return spans


# ---------------------------------------------------------------------- turns that are found


def _found(
    script: Script,
    messages: Messages,
    text: str,
    learnt: Sequence[int],
    learn: Sequence[str],
    alone: bool,
) -> list[Span]:
    """Return the spans of learnt turns in a text without marks."""
    turns = _Turns(script, messages, script.turns_in(text), alone)
    spans: list[Span] = []
    for i in learnt:
        check_extras(script, messages, i, learn)
        start, stop = turns.turn(i)
        check_content(messages, i, turns.text[start:stop], learn)
        by_next = not turns.opens_answer(i, start, stop)
        turn = script.special.closed(text, start, stop, by_next=by_next)
        spans += learnt_parts(script, messages, turns.text, i, turn, learn)
    return spans


@dataclass(frozen=True, slots=True)
class _Turns:
    """Locations of the assistant's turns in a rendered conversation.

    Attributes:
        script: the bound template.
        messages: the messages of the conversation.
        text: their rendering, without a header after the last turn.
        alone: only the last turn is wanted, as the model would generate it.
    """

    script: Script
    messages: Messages
    text: str
    alone: bool = False

    def turn(self, i: int) -> Span:
        """Return the span of message i, without its closing token.

        Raises:
            RenderError: the message cannot be located.
        """
        start = self._start(i)
        return start, self._stop(i, start)

    def opens_answer(self, i: int, start: int, stop: int) -> bool:
        """Return True if the token after message i, text[start:stop], begins another answer."""
        following = self.messages[i + 1 : i + 2]
        if not following or following[0]["role"] != "assistant":
            return False
        text = self.text
        begin = after_space(text, stop)
        token = text[begin : self.script.special.end(text, begin)]
        return bool(token) and text[:start].rstrip().endswith(token)

    def after_header(self, i: int, least: int) -> int | None:
        """Return the position from which renderings of turn i with other contents differ."""
        turns = [{"role": "assistant", "content": content} for content in ("a", "b")]
        probes = [self.script.text([*self.messages[:i], turn]) for turn in turns]
        start = len(os.path.commonprefix([*probes, self.text]))  # noqa: RUF071  of texts, not paths
        return start if start >= least else None

    def _start(self, i: int) -> int:
        text, prompted = self.text, self.script.prompted
        messages = self.messages[:i]
        before = "" if i == 0 and not prompted else self.script.text(messages, prompted)
        start: int | None = None
        if text.startswith(before):
            written = prompted and self._is_prompted(i, before)
            start = len(before) if written else self.after_header(i, len(before))
        elif prompted:
            history = self.script.text(messages)
            if text.startswith(history):
                if self.alone:
                    raise _not_as_prompted(i, before.removeprefix(history))
                place = place_of_content(self.script, self.messages, text, i)
                start = self.after_header(i, len(history)) if place else None
                start = min(start, place[0]) if start is not None and place else None
        if start is None:
            raise _rewritten(f"the text before message {i}", self.alone)
        return start

    def _is_prompted(self, i: int, before: str) -> bool:
        """Return True if `before` ends with a generation prompt, which may lack after an answer."""
        if i == 0 or self.messages[i - 1]["role"] != "assistant":
            return True
        return before != self.script.text(self.messages[:i])

    def _stop(self, i: int, start: int) -> int:
        messages, text, special = self.messages, self.text, self.script.special
        if i == len(messages) - 1:
            return len(text)
        after = self.script.text(messages[: i + 1])
        if text.startswith(after) and len(after) >= start:
            return len(after)
        place = place_of_content(self.script, messages, text, i)
        if place is not None and place[0] >= start:
            last_place = place_of_content(self.script, messages[: i + 1], after, i)
            if last_place is not None and text.startswith(after[last_place[1] :], place[1]):
                return place[1] + len(after) - last_place[1]
            closing = special.end(text, after_space(text, place[1]))
            if closing is not None and not messages[i].get("tool_calls"):
                return place[1] if self.opens_answer(i, start, place[1]) else closing
        raise _rewritten(f"message {i}", self.alone)


def _nothing() -> RenderError:
    return RenderError("has nothing that the template marks as the assistant's", _MARK_REMEDY)


def _rewritten(part: str, alone: bool) -> RenderError:
    each = "" if alone else 'Pass turns="each", which makes a document of every turn; or mark'
    return RenderError(
        f"looks different up to {part} than as a whole (the template rewrites or leaves out "
        "earlier turns), so the assistant's turn cannot be found",
        f"{each or 'Mark'} the turns with {{% generation %}} blocks, or use a template that "
        "renders a turn independently of later ones.",
    )


def _not_as_prompted(i: int, prompt: str) -> RenderError:
    closed = "</think>" in prompt  # the prompt forbids thoughts, and the message has some
    return RenderError(
        f"has a message {i} that does not begin with the template's generation prompt, "
        f"{prompt[-80:]!r}, so the model would learn an answer to another prompt",
        f'Pass template_kwargs= that change the prompt, such as {{"enable_thinking": {closed}}}; '
        f"{'remove its thoughts' if closed else 'add thoughts to the message'}; or pass "
        'turns="whole".',
    )
