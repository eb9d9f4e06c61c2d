"""Chat templates, which render a conversation to text and locate their generation blocks in it.

`turns` decides which characters of the text carry loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from streampack.cached import cached_property
from streampack.chats.conversations import Conversation, TurnRules
from streampack.chats.templates.messages import (
    SpecialTokens,
    answer_of,
    forms,
    has_images,
    with_parts,
    writes_arguments,
)
from streampack.chats.templates.script import Messages, RenderError, Script, next_header
from streampack.chats.templates.turns import Rendered, rendered
from streampack.extras import missing_package

if TYPE_CHECKING:
    from streampack.chats.templates.jinja import BoundedTemplate


class ChatTemplate:
    """A sandboxed Jinja template with access to the conversation and its variables. Picklable.

    Args:
        source: the template.
        variables: further variables, such as `bos_token`; "strftime_now" is a fixed date in ISO
            format.
        special: texts of the tokenizer's special tokens.
        rules: choice of the parts of a conversation that carry loss.

    Raises:
        ConfigError: `source` is not a template, or jinja2 is not installed.
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
        self._compiled  # noqa: B018  raises for a broken template

    def __getstate__(self) -> dict[str, Any]:
        cached = ("_compiled", "_next_header")
        return {name: value for name, value in self.__dict__.items() if name not in cached}

    @cached_property
    def _compiled(self) -> tuple[BoundedTemplate, bool, bool]:
        """Return the template, and whether it has generation blocks and a generation prompt."""
        try:
            from streampack.chats.templates.jinja import compile_template
        except ImportError as error:
            raise missing_package("jinja2", "chat", setting="template") from error
        return compile_template(self.source)

    def render(self, conversation: Conversation) -> list[Rendered]:
        """Render a conversation as one text, or as one text per learnt turn.

        Raises:
            RenderError: the template refuses the conversation, the assistant's parts cannot be
                located, or no part carries loss.
        """
        self.begin(conversation)
        conversation, text, marks = self._in_form(conversation)
        return rendered(self._script(conversation), conversation, text, marks, self._rules)

    def bound(self, conversation: Conversation) -> tuple[Script, Conversation]:
        """Return the script of a conversation, and the conversation in the form that it takes.

        Raises:
            RenderError: the template refuses the conversation.
        """
        self.begin(conversation)
        conversation, _, _ = self._in_form(conversation)
        return self._script(conversation), conversation

    def begin(self, conversation: Conversation) -> None:
        """Allow the steps of one more rendering of a conversation."""
        self._compiled[0].work.begin(len(conversation.messages), conversation.num_characters)

    def _script(self, conversation: Conversation) -> Script:
        _, marked, prompted = self._compiled

        def render(messages: Messages, prompt: bool) -> tuple[str, list[int]]:
            return self._render(conversation, messages, prompt)

        return Script(render, prompted, marked, self._special, self._next_header)

    def _in_form(self, conversation: Conversation) -> tuple[Conversation, str, list[int]]:
        """Find the first form of the conversation that the template accepts, and render it.

        A form is rejected if the template writes no content, or quotes the JSON text of tool
        arguments.
        """
        refused: RenderError | None = None
        silent: tuple[Conversation, str, list[int]] | None = None
        only_parts = has_images(conversation.messages)
        for in_parts in (True,) if only_parts else (False, True):
            quoted: tuple[Conversation, str, list[int]] | None = None
            for messages in forms(conversation.messages):
                formed = replace(conversation, messages=messages, in_parts=in_parts)
                try:
                    text, marks = self._render(formed, messages)
                except RenderError as error:
                    if type(error.__cause__).__name__ == "TooMuchError":
                        raise
                    if refused is None or _raised_by_template(error.__cause__):
                        refused = error
                    continue
                if not any(answer_of(message).strip() in text for message in messages):
                    silent = silent or (formed, text, marks)
                elif writes_arguments(messages, text):
                    return formed, text, marks
                else:
                    quoted = quoted or (formed, text, marks)
            if quoted is not None:
                return quoted
        if silent is not None:
            return silent
        assert refused is not None
        raise refused

    @cached_property
    def _next_header(self) -> str:
        """Header of a next turn that the template writes after the last one."""

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
        """Render messages; return the text and the positions of its generation blocks."""
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
                if type(piece) is not str:  # an empty mark
                    marks.append(at)
                else:
                    pieces.append(piece)
                    at += len(piece)
        except Exception as error:  # templates and odd records raise errors of any class
            raise RenderError(*_explained(error)) from error
        return "".join(pieces), marks


def _raised_by_template(error: BaseException | None) -> bool:
    """Return True if the template called ``raise_exception``, rather than failing."""
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
    reason = str(error) or type(error).__name__
    if isinstance(error, TypeError | KeyError | AttributeError):
        reason = f"{type(error).__name__}: {reason}"
    remedy = "Repair the record or the template."
    if token := re.search(r"'(\w+_token)' is undefined", reason):
        remedy = (
            f'Pass template_kwargs={{"{token[1]}": ...}} with the text of that token, or a '
            "tokenizer's folder with a tokenizer_config.json that names it."
        )
    return f"cannot be rendered by the chat template ({reason:.300})", remedy
