"""Chat templates: a conversation to one text, and which of its characters the assistant wrote.

If the template marks them (with ``{% generation %}`` blocks, as in transformers), the marks count.
Otherwise each turn is found by rendering the conversation up to it:

  1. before = the messages before the turn, with the generation prompt;
     after = the messages up to the turn, and the turn;
  2. the turn is the part of `after` that follows `before`, if `after` starts with `before` and the
     whole conversation starts with `after`; that part must hold the content of the message;
  3. if the conversation does not start with `after`, because the template writes the last turn
     differently from earlier ones, the turn is the content right after `before`, if a special token
     closes it;
  4. anything else is refused: a guess would teach the model the user's words, or not its own.

A template without generation prompt may open the turn with a header. Then `before` ends where
renderings of the turn with different contents begin to differ.

A turn ends with the special token that closes it. White space after that token is not part of the
turn; a special token that directly follows the turn is.

Cost: one rendering with marks, else two per turn of the assistant (four without generation
prompt).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from streampack.documents import Conversation
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["ChatTemplate", "RenderError", "Rendered"]

Messages = Sequence[Mapping[str, Any]]


class RenderError(Exception):
    """Why a conversation cannot be rendered; ends the sentence "document X ...".

    `remedy` says what to do.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy


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
        variables: what else it can use, such as `bos_token`.
        special: texts of the tokenizer's special tokens.

    Raises:
        ConfigError: it is no template, or jinja2 is not installed.
    """

    def __init__(self, source: str, variables: Mapping[str, Any], special: Iterable[str]) -> None:
        self.source = source
        self._variables = dict(variables)
        texts = sorted((text for text in special if text), key=len, reverse=True)
        alternatives = "|".join(map(re.escape, texts)) or "(?!)"
        self._special = re.compile(alternatives)
        self._at_end = re.compile(f"(?:{alternatives})\\Z")
        self._longest = len(texts[0]) if texts else 0
        self._compiled  # noqa: B018  a broken template should fail here

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_compiled"}

    @cached_property
    def _compiled(self) -> tuple[Template, bool, bool]:
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

    def render(self, conversation: Conversation) -> Rendered:
        """The text of a conversation and the assistant's parts of it.

        Raises:
            RenderError: the template refuses it, or the assistant's parts cannot be found.
        """
        messages = conversation.messages
        text, marks = self._render(conversation, messages)
        marked = self._compiled[1]
        if marked:
            spans = self._marked(conversation, text, marks)
        else:
            spans = self._found(conversation, text)
        spans = [self._closed(text, *span) for span in spans]
        spans = [(start, stop) for start, stop in spans if start < stop]
        if not spans:
            raise RenderError("has nothing that the template marks as the assistant's", _MARK)
        ends = messages[-1]["role"] == "assistant" and not text[spans[-1][1] :].strip()
        return Rendered(text, spans, closed=not ends or self._ends_special(text, *spans[-1]))

    def _render(
        self, conversation: Conversation, messages: Messages, prompt: bool = False
    ) -> tuple[str, list[int]]:
        """The text, and the places in it where generation blocks begin and end."""
        template, _, _ = self._compiled
        variables = {
            **self._variables,
            "messages": messages,
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": prompt,
        }
        pieces: list[str] = []
        marks: list[int] = []
        at = 0
        try:
            for piece in template.root_render_func(template.new_context(variables)):
                if type(piece) is not str:  # a mark, which is empty
                    marks.append(at)
                else:
                    pieces.append(piece)
                    at += len(piece)
        except Exception as error:  # templates fail with anything, from errors in records too
            raise RenderError(*_explained(error)) from error
        return "".join(pieces), marks

    # ------------------------------------------------------------------ marked turns

    def _marked(
        self, conversation: Conversation, text: str, marks: list[int]
    ) -> list[tuple[int, int]]:
        spans = list(zip(marks[::2], marks[1::2], strict=True))
        if conversation.first_learnt:
            prompt, _ = self._render(
                conversation, conversation.messages[: conversation.first_learnt]
            )
            if not text.startswith(prompt):
                raise RenderError(*_rewritten("the prompt"))
            spans = [span for span in spans if span[0] >= len(prompt)]
        if conversation.left_out:
            turns = [
                i
                for i, message in enumerate(conversation.messages)
                if i >= conversation.first_learnt and message["role"] == "assistant"
            ]
            if len(turns) != len(spans):
                raise RenderError(
                    f"has turns that are not learnt (weight 0 or train false), and the template "
                    f"marks {len(spans)} parts of {len(turns)} turns of the assistant",
                    "Use a template with one {% generation %} block for each turn.",
                )
            spans = [s for i, s in zip(turns, spans, strict=True) if conversation.learns(i)]
        return spans

    # ------------------------------------------------------------------ turns without marks

    def _found(self, conversation: Conversation, text: str) -> list[tuple[int, int]]:
        turns = range(len(conversation.messages))
        return [self._turn(conversation, text, i) for i in turns if conversation.learns(i)]

    def _turn(self, conversation: Conversation, text: str, i: int) -> tuple[int, int]:
        """The characters of message i."""
        messages = conversation.messages
        content = (messages[i]["content"] or "").strip()
        name = f"message {i}"
        last = i == len(messages) - 1
        after = text if last else self._render(conversation, messages[: i + 1])[0]
        start = self._start(conversation, text, i)
        if start is None:
            raise RenderError(*_rewritten(f"what comes before {name}"))
        if not text.startswith(after) or len(after) < start:
            stop = self._content_end(text, start, content)
            if stop is None or not messages[i].keys() <= {"role", "content", "name"}:
                raise RenderError(*_rewritten(name))
            return start, stop
        if content not in after[start:]:
            raise RenderError(
                f"has a {name} of the assistant that the template leaves out in part or rewrites",
                "Use a template that writes the assistant's content as it is, or one that marks "
                "what is to be learnt with {% generation %} blocks.",
            )
        return start, len(after)

    def _start(self, conversation: Conversation, text: str, i: int) -> int | None:
        """Where message i begins; None if the messages before it look different without it."""
        messages, prompted = conversation.messages, self._compiled[2]
        if i == 0 and not prompted:
            before = ""
        else:
            before, _ = self._render(conversation, messages[:i], prompt=prompted)
        if not text.startswith(before):
            return None
        if prompted:
            return len(before)
        # Contents that differ in their first character show where the header ends.
        probes = [
            self._render(conversation, [*messages[:i], {"role": "assistant", "content": probe}])[0]
            for probe in ("a", "b")
        ]
        start = len(os.path.commonprefix([*probes, text]))  # noqa: RUF071  of texts, not paths
        return start if start >= len(before) else None

    def _content_end(self, text: str, start: int, content: str) -> int | None:
        """The end of the special token that closes the content at `start`; None if none does."""
        begin = _after_space(text, start)
        if not content or not text.startswith(content, begin):
            return None
        closing = self._special.match(text, _after_space(text, begin + len(content)))
        return closing.end() if closing else None

    def _ends_special(self, text: str, start: int, stop: int) -> bool:
        """True if a special token ends text[start:stop]."""
        begin = max(start, stop - self._longest)
        return self._at_end.search(text, begin, stop) is not None

    def _closed(self, text: str, start: int, stop: int) -> tuple[int, int]:
        """The span up to the end of the special token that closes the turn."""
        content_stop = start + len(text[start:stop].rstrip())
        if self._ends_special(text, start, content_stop):
            return start, content_stop
        following = self._special.match(text, stop)
        return start, following.end() if following else stop


_MARK = "Mark the assistant's turns with {% generation %} blocks, end-of-turn token included."
_SPACE = re.compile(r"\s*")


def _after_space(text: str, start: int) -> int:
    space = _SPACE.match(text, start)
    return space.end() if space else start


def _rewritten(what: str) -> tuple[str, str]:
    return (
        f"looks different up to {what} than as a whole (the template rewrites or leaves out "
        "earlier turns), so the assistant's turn cannot be found",
        f"{_MARK} Or use a template that renders a turn the same whatever follows it.",
    )


def _explained(error: Exception) -> tuple[str, str]:
    if "strftime_now" in str(error):
        return (
            "cannot be rendered, because the template asks for the date (strftime_now)",
            "A text that depends on the day would make a resumed run differ. Set the date in the "
            "template, for example with a first line {% set date_string = '26 Jul 2024' %}.",
        )
    what = str(error) or type(error).__name__
    if isinstance(error, TypeError | KeyError | AttributeError):
        what = f"{type(error).__name__}: {what}"
    return (
        f"cannot be rendered by the chat template ({what:.300})",
        "Repair the record or the template.",
    )
