"""Script: the text that a template makes of messages, without what it writes unasked at the end.

Some templates write the header of the next turn after the last one, whatever that is (Command-A's
does). It belongs to no turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from streampack.tokenization.messages import PROBE, SpecialTokens

Messages = Sequence[Mapping[str, Any]]
#: (start, stop) characters of a text.
Span = tuple[int, int]

#: What stands for special tokens where the tokenizer has none of the template's.
_MARKER = re.compile(r"<\|[^<>|\s]+\|>")


class RenderError(Exception):
    """Why a conversation cannot be rendered; ends the sentence "document X ...".

    `remedy` says what to do, and `setting` is the argument that it is about.
    """

    def __init__(self, reason: str, remedy: str = "", setting: str | None = None) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy
        self.setting = setting


@dataclass(frozen=True, slots=True)
class Script:
    """How a template writes the messages of one conversation.

    Attributes:
        render: the text of messages, with the generation prompt or without, and the places in it
            where generation blocks begin and end.
        prompted: there is a generation prompt.
        marked: there are generation blocks.
        special: the tokenizer's special tokens.
        next_header: what is written after the last turn; see `next_header`.
    """

    render: Callable[[Messages, bool], tuple[str, list[int]]]
    prompted: bool
    marked: bool
    special: SpecialTokens
    next_header: str

    def text(self, messages: Messages, prompt: bool = False) -> str:
        """The text of messages, with the generation prompt or without any header after them."""
        made, _ = self.render(messages, prompt)
        return made if prompt else self.turns_in(made)

    def turns_in(self, text: str) -> str:
        """The text without the header after its last turn."""
        header = self.next_header
        return text.rstrip().removesuffix(header) if header else text

    def changed(self, messages: Messages, i: int, message: Mapping[str, Any]) -> str | None:
        """The text with another message i; None if the template refuses it."""
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
    """What the template writes after a last answer that begins the next one; "" if nothing.

    Args:
        render: the text of messages, without a generation prompt; None if the template refuses
            them.
        special: the tokenizer's special tokens; `bos` and `eos` are the texts of two of them.
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
    """Where the turn ends in what follows its content, whatever comes next.

    After its EOS; else before the tokens that begin messages, as the first one of the text does.
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
