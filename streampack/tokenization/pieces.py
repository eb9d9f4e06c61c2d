"""Long texts in pieces that give the same ids as the whole.

The tokenizers library takes some 100 bytes of memory per character of a text. Most tokenizers
divide a text into words before anything else, and nothing goes from one word to the next; so a text
may be cut where every one of them has a boundary, and where the piece before says so without
seeing what follows: after a line break that stands between a printed ASCII character and an ASCII
letter.

That holds for a tokenizer if

- its normalizer works character by character or composes Unicode, of which nothing reaches over a
  line break;
- one of its pre-tokenizers divides at white space or at line breaks, or by a regular expression all
  of whose alternatives are known: those of GPT-2, GPT-4 (cl100k, o200k), Llama 3, Qwen, DeepSeek
  and Mistral's Tekken. Those after it see one word at a time;
- nothing is added to the beginning of a text, and no added token holds a line break, begins with a
  letter, or takes in white space on its left.

Others are not cut.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer as Engine

BYTES_PER_CHARACTER = 100  # of memory, that the library takes
PIECE = 1 << 18  # characters, at least, of every piece but the last

_CUT = re.compile(r"[!-~]\n(?=[A-Za-z])")
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"}
_AT_WHITE_SPACE = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"}
_OF_A_WORD = {"Digits", "Punctuation", "Split", "UnicodeScripts", *_AT_WHITE_SPACE}
_LINE_BREAKS = {"[\r\n]", r"[\r\n]", "[\r\n]+", r"[\r\n]+", "\n", r"\n", "\n+", r"\n+"}
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = [r"[^\r\n\p{L}\p{N}]?" + case for case in (f"{_UPPER}*{_LOWER}+", f"{_UPPER}+{_LOWER}*")]
#: Alternatives that match a letter after a line break, and not the line break with it.
_WORDS = {
    r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    *_CASED, *(f"{word}{_ENDINGS}?" for word in _CASED),
}  # fmt: skip
#: Those that match no letter after a line break, nor look beyond white space that they match.
_OTHERS = {
    "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", _ENDINGS,
    r" ?\p{N}+", r"\p{N}", r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[\p{P}\p{S}]+[\r\n]*", r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
    r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
}  # fmt: skip


def is_long(text: str) -> bool:
    """Whether there may be several pieces of a text."""
    return len(text) > PIECE


def pieces_of(text: str) -> list[str]:
    """The text, cut after about every `PIECE` characters."""
    pieces, start = [], 0
    while len(text) - start > PIECE and (found := _CUT.search(text, start + PIECE)):
        pieces.append(text[start : found.end()])
        start = found.end()
    return [*pieces, text[start:]]


def can_be_cut(engine: Engine) -> bool:
    """Whether the tokenizer gives the pieces of a text the ids that they have in the whole."""
    parts = json.loads(engine.to_str())
    normalizers = _steps(parts["normalizer"], "normalizers")
    return (
        all(step["type"] in _NORMALIZERS for step in normalizers)
        and _divides(_steps(parts["pre_tokenizer"], "pretokenizers"))
        and not any(
            token["lstrip"] or "\n" in token["content"] or token["content"][:1].isalpha()
            for token in parts["added_tokens"]
        )
    )


def _steps(part: Any, name: str) -> list[Any]:
    """The steps of a normalizer or pre-tokenizer, in order."""
    if part is None:
        return []
    return [step for each in part[name] for step in _steps(each, name)] if name in part else [part]


def _divides(steps: list[Any]) -> bool:
    """Whether a step has a boundary at the cut, and neither those before nor after see over it."""
    for number, step in enumerate(steps):
        if _has_boundary(step):
            return all(
                after["type"] in _OF_A_WORD
                or (after["type"] == "ByteLevel" and not after["add_prefix_space"])
                for after in steps[number + 1 :]
            )
        if step["type"] != "Digits" and not _alternatives(step) <= _OTHERS:
            return False
    return False


def _has_boundary(step: Any) -> bool:
    if step["type"] == "ByteLevel":
        return bool(step["use_regex"]) and not step["add_prefix_space"]
    if step["type"] == "Split" and step["behavior"] in ("Isolated", "Removed"):
        (pattern,) = step["pattern"].values()
        if pattern in _LINE_BREAKS and not step["invert"]:
            return True
    found = _alternatives(step)
    return step["type"] in _AT_WHITE_SPACE or (bool(found & _WORDS) and found <= _WORDS | _OTHERS)


def _alternatives(step: Any) -> set[str]:
    """What a regular expression that texts are split by chooses from, line breaks written out."""
    if step["type"] != "Split" or step["behavior"] != "Isolated" or step["invert"]:
        return {""}
    pattern = step["pattern"].get("Regex", "").replace("\r", r"\r").replace("\n", r"\n")
    depth, parts = 0, [""]
    for unit in re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|.", pattern):
        depth += (unit == "(") - (unit == ")")
        if unit == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += unit
    return set(parts)
