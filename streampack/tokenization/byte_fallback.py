"""SentencePiece BPE with byte fallback, as Llama 2 and Mistral 7B have it, for gigatoken.

A text is one sequence of characters: white space is "▁", and a character outside the vocabulary is
its bytes in UTF-8, with a token for each. No version of Unicode is involved.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_NORMALIZERS = [
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
]


def with_byte_fallback(described: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the tokenizer.json of a SentencePiece BPE for gigatoken, or None if ids would differ.

    Every byte needs a token, which takes part in no merge: gigatoken knows tokens by their bytes,
    so it would confuse "<0x41>" with "A". It also reads other spellings as bytes ("<0x4a>").

    Normalized added tokens, which `tokenizers` finds in normalized text ("▁<s>"), are left out: a
    text with one of them must not be encoded by gigatoken.
    """
    model, tokens = described["model"], described["added_tokens"]
    refused = ("continuing_subword_prefix", "end_of_word_suffix", "dropout", "ignore_merges")
    if (
        model["type"] != "BPE"
        or not model.get("byte_fallback")
        or any(model.get(name) for name in refused)
        or described["normalizer"] != {"type": "Sequence", "normalizers": _NORMALIZERS}
        or described["pre_tokenizer"] is not None
        or any(token["normalized"] and {*" ▁"} & {*token["content"]} for token in tokens)
    ):
        return None
    spelled = {text for text in model["vocab"] if _like_a_byte(text)}
    merged = set(chain.from_iterable((*pair, "".join(pair)) for pair in model["merges"]))
    if spelled != _BYTES or not merged.isdisjoint(_BYTES):
        return None
    return {**described, "added_tokens": [token for token in tokens if not token["normalized"]]}


def _like_a_byte(text: str) -> bool:
    return text.startswith("<0x") and text.endswith(">") and len(text.encode()) == 6
