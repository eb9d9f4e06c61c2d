"""Split patterns of byte-level BPE that gigatoken shares with `tokenizers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Split pattern of GPT-2 (https://github.com/openai/gpt-2), which a tokenizer.json implies.
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_MARKS = _REST.replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
_SLASHES = _REST.replace(r"[\r\n]*", r"[\r\n/]*")
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|%s| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
    r"|\s*[\r\n]|\s+(?!\S)|\s%s"
)
_R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
#: Lists of patterns that gigatoken cuts as `tokenizers` does, as a tokenizer.json has them, and as
#: gigatoken reads them: its src/pretokenize/options.rs (github.com/marcelroed/gigatoken, 0.10.0),
#: without the text of cl100k for which white space at the end of a text is cut otherwise.
_KNOWN: list[tuple[str, ...]] = [
    (GPT2,),
    (_ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST,),  # Llama 3, OLMo 2 and 3
    (_ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST,),  # Qwen 2 and 3
    (_ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}" + _MARKS,),  # Qwen 3.5
    (f"{_WORDS[0]}{_ENDINGS}?|{_WORDS[1]}{_ENDINGS}?" + r"|\p{N}{1,3}" + _SLASHES,),  # o200k
    ("|".join(_WORDS) + r"|\p{N}" + _SLASHES,),  # Nemotron 3, Tekken
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
        "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ),  # DeepSeek V3
]
_SAME = dict(zip(_KNOWN, _KNOWN, strict=True))
# Texts of tiktoken, as `tiktoken.py` converts them. Where \s+(?!\S) does not match, white space is
# a single character, so \s is \s+; and at the end of a text, \s++$ matches as \s+(?!\S) does.
_SAME[(_R50K,)] = (GPT2,)
for _last in ("", "+"):
    _SAME[(_CL100K % (r"(?>\p{N}{1,3})", _last),)] = (_CL100K % (r"\p{N}{1,3}+", "+"),)

_SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = iter(range(256, 512))
#: Letter that encodes each byte: the byte's own if it is printable, else one from 256 on.
LETTERS = [chr(byte if byte in _SEEN else next(_OTHERS)) for byte in range(256)]
_BYTE_OF = {letter: byte for byte, letter in enumerate(LETTERS)}


def known_patterns(described: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return gigatoken's text of the patterns that split a text before BPE.

    Args:
        described: content of a tokenizer.json. Added tokens are ignored; see `added_tokens`.

    Returns:
        The patterns, or None if it is not a plain byte-level BPE with patterns in `_SAME`.
    """
    model, normalizers = described["model"], _steps(described["normalizer"], "normalizers")
    plain = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "dropout")
    if (
        model["type"] != "BPE"
        or any(model.get(name) for name in plain)
        or not model["vocab"].keys() >= _BYTE_OF.keys()
        or any(step["type"] != "NFC" for step in normalizers)
    ):
        return None
    steps = _steps(described["pre_tokenizer"], "pretokenizers")
    if not steps or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    *splits, last = steps
    if not splits:
        return (GPT2,) if last.get("use_regex", True) else None
    if last.get("use_regex", True):
        return None
    # A pattern that matches all text may also remove the text between its matches: nothing.
    cuts = {("Isolated", False)} | ({("Removed", True)} if len(splits) == 1 else set())
    if any(s["type"] != "Split" or (s["behavior"], s["invert"]) not in cuts for s in splits):
        return None
    return _SAME.get(tuple(split["pattern"].get("Regex", "") for split in splits))


def _steps(described: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """Return the steps of a tokenizer's part, which may be missing, a single one or a sequence."""
    if described is None:
        return []
    return described[name] if described["type"] == "Sequence" else [described]
