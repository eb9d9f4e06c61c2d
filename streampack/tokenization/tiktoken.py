"""Conversion of a tiktoken encoding to a tokenizer of the tokenizers library with the same ids.

Bytes become the letters of byte-level BPE. The merge for a token is the last one when its bytes are
merged by rank. The split pattern and the ids of special tokens are kept.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer as Engine

from streampack.errors import ConfigError
from streampack.tokenization.byte_level import LETTERS
from streampack.tokenization.fast import HOSTILE

#: A possessive quantifier {m,n}+. Oniguruma, the regex engine of tokenizers, reads the plus as a
#: repetition of the whole.
_POSSESSIVE = re.compile(r"(\\[pP]\{\w+\}|\[(?:\\.|[^]\\])*\]|\\?.)(\{\d+(?:,\d*)?\})\+")


def engine_of_tiktoken(encoding: Any) -> Engine:
    """Convert a `tiktoken.Encoding`; takes about a second for 50,000 tokens.

    Raises:
        ConfigError: the result gives other ids for one of the texts in `HOSTILE`.
    """
    ranks: dict[bytes, int] = encoding._mergeable_ranks
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1 and (pair := _last_merge(ranks, token, rank)) is not None:
            merges.append(["".join(LETTERS[byte] for byte in part) for part in pair])
    special = [
        {"id": number, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for text, number in sorted(encoding._special_tokens.items(), key=lambda item: item[1])
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    whole = {**byte_level, "use_regex": False}
    pattern = {"Regex": _POSSESSIVE.sub(r"(?>\1\2)", encoding._pat_str)}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    vocabulary = {"".join(LETTERS[b] for b in token): rank for token, rank in ranks.items()}
    vocabulary |= encoding._special_tokens  # these keep their ids even if lower ids are unused
    described = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, whole]},
        "decoder": {**byte_level, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": True},
    }
    engine = Engine.from_str(json.dumps(described))
    for text in HOSTILE:
        if engine.encode(text).ids != encoding.encode(text, allowed_special="all"):
            raise ConfigError(
                f"The conversion of {encoding!r} must keep ids, but changes them for {text!r:.80}.",
                "Pass a tokenizer.json of this vocabulary.",
                setting="tokenizer",
            )
    return engine


def _last_merge(ranks: dict[bytes, int], token: bytes, rank: int) -> tuple[bytes, bytes] | None:
    """Return the parts that are merged last to form a token; None if lower ranks never form it."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
        least = min(pairs)
        if least >= rank:
            return None
        at = pairs.index(least)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
