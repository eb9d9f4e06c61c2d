"""Rendering of messages without a trailing header.

Some templates, such as Command-A's, always write the header of a next turn after the last one. It
belongs to no turn and is removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from streampack.chats.templates.messages import PROBE, SpecialTokens

Messages = Sequence[Mapping[str, Any]]
#: (start, stop) characters of a text.
Span = tuple[int, int]

#: Form of special tokens, for tokenizers that lack the template's.
_MARKER = re.compile(r"<\|[^<>|\s]+\|>")


class RenderError(Exception):
    """A conversation cannot be rendered.

    Attributes:
        reason: predicate of a sentence with the document as subject.
        remedy: advice to the user.
        setting: argument to change, or None.
    """

    def __init__(self, reason: str, remedy: str = "", setting: str | None = None) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy
        self.setting = setting


@dataclass(frozen=True, slots=True)
class Script:
    """A template bound to one conversation.

    Attributes:
        render: function from messages, and whether to add the generation prompt, to their text and
            the positions at which generation blocks begin and end.
        prompted: the template has a generation prompt.
        marked: the template has generation blocks.
        special: the tokenizer's special tokens.
        next_header: header that the template writes after the last turn; see `next_header`.
    """

    render: Callable[[Messages, bool], tuple[str, list[int]]]
    prompted: bool
    marked: bool
    special: SpecialTokens
    next_header: str

    def text(self, messages: Messages, prompt: bool = False) -> str:
        """Render messages, either with the generation prompt or without any header after them."""
        rendering, _ = self.render(messages, prompt)
        return rendering if prompt else self.turns_in(rendering)

    def turns_in(self, text: str) -> str:
        """Remove the header after the last turn from a text."""
        header = self.next_header
        return text.rstrip().removesuffix(header) if header else text

    def changed(self, messages: Messages, i: int, message: Mapping[str, Any]) -> str | None:
        """Render with message i replaced; return None if the template refuses it."""
        try:
            return self.text([*messages[:i], message, *messages[i + 1 :]])
        except RenderError:
            return None


def next_header(
    render: Callable[[Messages], str | None],
    special: SpecialTokens,
    bos: str | None,
    eos: str | None,
) -> str:
    """Return the header of a next turn that the template writes after the last answer, or "".

    Args:
        render: function from messages to their text without a generation prompt, or to None if the
            template refuses them.
        special: the tokenizer's special tokens.
        bos: text of the BOS token.
        eos: text of the EOS token.
    """
    answer, other = ({"role": "assistant", "content": text} for text in (PROBE, "other"))
    question = {"role": "user", "content": "question"}
    texts = [render([question, answer, *more]) for more in ([], [other], [question])]
    tails = [text.partition(PROBE)[2] for text in texts if text and text.count(PROBE) == 1]
    if len(tails) < 3:
        return ""
    last, before_answer, before_question = tails[0].rstrip(), *tails[1:]
    if before_question.startswith(last) or not before_answer.startswith(last):
        return ""
    common = commonprefix([last, before_question])  # noqa: RUF071  of texts, not paths
    return last[_end_of_turn(common, f"{texts[0]}".removeprefix(bos or ""), special, eos) :]


def _end_of_turn(common: str, text: str, special: SpecialTokens, eos: str | None) -> int:
    """Return the end of the turn in the text that follows its content before any next turn.

    It ends after its EOS, or else before the first token that begins messages, which is the first
    special token of the text.
    """
    if eos and eos in common:
        return common.rindex(eos) + len(eos)
    tokens = special.found(text)
    find = special.found if tokens else _markers
    first = (tokens or _markers(text) or [("", 0)])[0][0]
    ends = [end for token, end in find(common) if token != first]
    return ends[-1] if ends else len(common)


def _markers(text: str) -> list[tuple[str, int]]:
    return [(match.group(), match.end()) for match in _MARKER.finditer(text)]
