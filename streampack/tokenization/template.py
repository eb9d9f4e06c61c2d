"""Chat templates: a conversation to texts, and which of their characters carry loss.

If the template marks the assistant's turns (with ``{% generation %}`` blocks, as in transformers),
the marks count. Otherwise turns are found by rendering parts of the conversation, as
`streampack.tokenization.turns` says.

A turn ends with the special token that closes it. White space after that token is not part of the
turn; a special token that directly follows the turn is.

With turns="each" every turn that is learnt is a text of its own: what comes before it, as the
template renders it with the generation prompt, and the turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from streampack.cached import cached_property
from streampack.documents.conversations import PARTS, Conversation, TurnRules
from streampack.errors import ConfigError
from streampack.tokenization.messages import (
    answer_of,
    forms,
    parts_of,
    with_parts,
    without_thoughts,
)
from streampack.tokenization.next_header import next_header
from streampack.tokenization.special import SpecialTokens
from streampack.tokenization.turns import MARK_REMEDY, RenderError, Turns

if TYPE_CHECKING:
    from streampack.tokenization._bounded import BoundedTemplate

Messages = Sequence[Mapping[str, Any]]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as text.

    Attributes:
        text: all of it.
        spans: (start, stop) characters that carry loss, in order, none empty.
        closed: False if the last message is the assistant's and no special token ends it.
    """

    text: str
    spans: list[tuple[int, int]]
    closed: bool


class ChatTemplate:
    """A Jinja template in a sandbox: it can use the conversation and nothing else. Picklable.

    Args:
        source: the template.
        variables: what else it can use, such as `bos_token`; "strftime_now" is a fixed date in ISO
            format.
        special: texts of the tokenizer's special tokens.
        rules: what is learnt.

    Raises:
        ConfigError: it is no template, or jinja2 is not installed.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        special: Iterable[str],
        rules: TurnRules | None = None,
    ) -> None:
        self.source = source
        self._variables = dict(variables)
        if "strftime_now" in variables:
            date = datetime.fromisoformat(variables["strftime_now"])
            self._variables["strftime_now"] = date.strftime
        self._special = SpecialTokens(special)
        self._rules = rules or TurnRules()
        self._compiled  # noqa: B018  a broken template should fail here

    def __getstate__(self) -> dict[str, Any]:
        made = ("_compiled", "_next_header")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    @cached_property
    def _compiled(self) -> tuple[BoundedTemplate, bool, bool]:
        """The template, whether it has generation blocks, and whether a generation prompt."""
        try:
            from streampack.tokenization._jinja import compile_template
        except ImportError as error:
            raise ConfigError(
                "jinja2 is not installed.",
                "Chat templates are written in its language.",
                'Install it with `pip install "streampack[chat]"`.',
            ) from error
        return compile_template(self.source)

    def render(self, conversation: Conversation) -> list[Rendered]:
        """The conversation as one text, or as one for every turn that is learnt.

        Raises:
            RenderError: the template refuses it, the assistant's parts cannot be found, or there is
                none to learn.
        """
        self._compiled[0].work.begin(len(conversation.messages), conversation.num_characters)
        conversation, text, marks = self._in_form(conversation)
        if self._rules.turns == "whole":
            return [self._rendered(conversation, text, marks)]
        learnt = self._learnt(conversation)
        if not learnt:
            raise _nothing()
        return [self._alone(conversation, i) for i in learnt]

    def _in_form(self, conversation: Conversation) -> tuple[Conversation, str, list[int]]:
        """The conversation in the first form that the template takes, and what it renders to.

        A template that writes no content at all takes it in another form.
        """
        refused: RenderError | None = None
        silent: tuple[Conversation, str, list[int]] | None = None
        for in_parts in (False, True):
            for messages in forms(conversation.messages):
                formed = replace(conversation, messages=messages, in_parts=in_parts)
                try:
                    text, marks = self._render(formed, messages)
                except RenderError as error:
                    if type(error.__cause__).__name__ == "TooMuchError":
                        raise
                    if refused is None or _said_by_template(error.__cause__):
                        refused = error
                    continue
                if any(answer_of(message).strip() in text for message in messages):
                    return formed, text, marks
                silent = silent or (formed, text, marks)
        if silent is not None:
            return silent
        assert refused is not None
        raise refused

    def _learnt(self, conversation: Conversation) -> list[int]:
        """Numbers of the messages with something to learn."""
        messages, wanted = conversation.messages, set(self._rules.learn)
        learnt = [i for i in range(len(messages)) if conversation.learns(i)]
        if self._rules.learn == PARTS:
            return learnt
        return [i for i in learnt if parts_of(messages[i]) & wanted]

    def _rendered(
        self, conversation: Conversation, text: str, marks: list[int], alone: bool = False
    ) -> Rendered:
        """The text with its spans that carry loss; of the last turn alone, if so asked."""
        messages, learn = conversation.messages, self._rules.learn
        _, marked, prompted = self._compiled

        def render(part: Messages, prompt: bool) -> str:
            made, _ = self._render(conversation, part, prompt)
            return made if prompt else self._without_next_header(made)

        def turns_in(text: str) -> Turns:
            return Turns(
                render, prompted, self._special, messages, self._without_next_header(text), alone
            )

        if alone and prompted and not marked:
            text = turns_in(text).as_generated()
        turns = turns_in(text)
        spans: list[Span] = []
        if marked:
            spans = self._marked(conversation, text, marks, turns)
        else:
            for i in self._learnt(conversation):
                start, stop = turns.turn(i, learn)
                by_next = not turns.opens_answer(i, start, stop)
                span = self._special.closed(text, start, stop, by_next=by_next)
                spans += turns.parts(i, *span, learn)
        spans = [(start, stop) for start, stop in spans if start < stop]
        if not spans:
            raise _nothing()
        ends = messages[-1]["role"] == "assistant" and not text[spans[-1][1] :].strip()
        return Rendered(text, spans, closed=not ends or self._special.ends(text, *spans[-1]))

    def _alone(self, conversation: Conversation, i: int) -> Rendered:
        """Turn i with what comes before it, as it is when it is generated."""
        messages = list(conversation.messages[: i + 1])
        if self._rules.thoughts == "strip-history":
            learns = {"role": "assistant"}.items()
            messages[:i] = [
                without_thoughts(message) if learns <= message.items() else message
                for message in messages[:i]
            ]
        part = replace(conversation, messages=messages, first_learnt=i, left_out=frozenset())
        made = self._rendered(part, *self._render(part, messages), alone=True)
        following_role = [message["role"] for message in conversation.messages[i + 1 : i + 2]]
        if made.closed or following_role in ([], ["assistant"]):
            return made
        # A turn that the next one's token closes (the model stops at it).
        following, _ = self._render(part, [*messages, conversation.messages[i + 1]])
        stop = self._special.end(following, len(made.text))
        if stop is None or not following.startswith(made.text):
            return made
        spans = [*made.spans[:-1], (made.spans[-1][0], stop)]
        return Rendered(following[:stop], spans, closed=True)

    def _without_next_header(self, text: str) -> str:
        """The text without the header that some templates write after the last turn, unasked."""
        header = self._next_header
        return text.rstrip().removesuffix(header) if header else text

    @cached_property
    def _next_header(self) -> str:
        """What the template writes after the last turn as the beginning of the next one."""

        def text(messages: Messages) -> str | None:
            for in_parts in (False, True):
                try:
                    return self._render(Conversation(messages, in_parts=in_parts), messages)[0]
                except RenderError:
                    continue
            return None

        bos, eos = (self._variables.get(name) for name in ("bos_token", "eos_token"))
        return next_header(text, self._special, bos, eos)

    def _render(
        self, conversation: Conversation, messages: Messages, prompt: bool = False
    ) -> tuple[str, list[int]]:
        """The text, and the places in it where generation blocks begin and end."""
        template, _, _ = self._compiled
        variables = {
            **self._variables,
            "messages": with_parts(messages) if conversation.in_parts else messages,
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": prompt,
        }
        pieces: list[str] = []
        marks: list[int] = []
        at = 0
        try:
            for piece in template.pieces(variables):
                if type(piece) is not str:  # a mark, which is empty
                    marks.append(at)
                else:
                    pieces.append(piece)
                    at += len(piece)
        except Exception as error:  # templates fail with anything, from errors in records too
            raise RenderError(*_explained(error)) from error
        return "".join(pieces), marks

    def _marked(
        self, conversation: Conversation, text: str, marks: list[int], turns: Turns
    ) -> list[Span]:
        """What the template marks, of the turns that are learnt."""
        messages, learn = conversation.messages, self._rules.learn
        spans = [
            self._special.closed(text, start, stop)
            for start, stop in zip(marks[::2], marks[1::2], strict=True)
        ]
        for i in self._learnt(conversation):
            turns.check_extras(i, learn)
        all_turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if len(all_turns) == len(spans):
            learnt = set(self._learnt(conversation))
            kept = [(i, span) for i, span in zip(all_turns, spans, strict=True) if i in learnt]
            for i, span in kept:
                turns.check_content(i, *span, learn)
            return [part for i, span in kept for part in turns.parts(i, *span, learn)]
        if conversation.left_out or learn != PARTS:
            raise RenderError(
                f"has turns or parts that are not learnt, and the template marks {len(spans)} "
                f"parts of {len(all_turns)} turns of the assistant",
                "Use a template with one {% generation %} block for each turn.",
            )
        if conversation.first_learnt:
            before, _ = self._render(conversation, messages[: conversation.first_learnt])
            if not text.startswith(before):
                raise RenderError(
                    "looks different up to the prompt than as a whole, so what follows the prompt "
                    "cannot be found",
                    "Use a template with one {% generation %} block for each turn.",
                )
            spans = [span for span in spans if span[0] >= len(before)]
        return spans


def _nothing() -> RenderError:
    return RenderError("has nothing that the template marks as the assistant's", MARK_REMEDY)


def _said_by_template(error: BaseException | None) -> bool:
    """True if the template refused by ``raise_exception``, and did not just fail."""
    return type(error).__name__ == "TemplateError"


def _explained(error: Exception) -> tuple[str, str]:
    if "strftime_now" in str(error):
        return (
            "cannot be rendered, because the template asks for the date (strftime_now)",
            "A text that depends on the day would make a resumed run differ. Pass a fixed date, "
            'template_kwargs={"strftime_now": "2025-07-26"}, to sources.Chat.',
        )
    if type(error).__name__ == "TooMuchError":
        return (
            f"cannot be rendered by the chat template, which {error}",
            "Repair the record or the template.",
        )
    what = str(error) or type(error).__name__
    if isinstance(error, TypeError | KeyError | AttributeError):
        what = f"{type(error).__name__}: {what}"
    remedy = "Repair the record or the template."
    if token := re.search(r"'(\w+_token)' is undefined", what):
        remedy = (
            f'Pass template_kwargs={{"{token[1]}": ...}} with the text of that token, or a '
            "tokenizer's folder whose tokenizer_config.json names it."
        )
    return f"cannot be rendered by the chat template ({what:.300})", remedy
