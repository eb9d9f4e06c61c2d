"""The header of the next turn, which some templates write after the last turn without being asked.

Command-A's template does, for example: whatever comes last, the text ends with the beginning of an
answer. It belongs to no turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from os.path import commonprefix
from typing import Any

from streampack.tokenization.messages import PROBE
from streampack.tokenization.special import SpecialTokens

#: What stands for special tokens where the tokenizer has none of the template's.
_MARKER = re.compile(r"<\|[^<>|\s]+\|>")


def next_header(
    render: Callable[[Sequence[Mapping[str, Any]]], str | None],
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
