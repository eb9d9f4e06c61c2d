"""Added tokens: how `tokenizers` cuts them out of a text, and a vocabulary in which kitoken does.

`tokenizers` looks for added tokens twice, in the text and in the normalized text between the tokens
found there. Each time the leftmost match counts, and the longest of those.

kitoken looks twice as well, and takes the first match in the order of the file. It forgets ordinary
tokens of one byte or with a merge, takes a token's text out of the vocabulary, where it may stand
for other bytes, and gives a token that shares its id another one. So it gets all tokens as special
ones, the longest first, and no vocabulary in which a text or an id means two things.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Engine

from streampack.tokenization.byte_level import LETTERS

_CONDITIONS = ("lstrip", "rstrip", "single_word")
_ORDINARY = frozenset(map(chr, range(33, 127)))  # letters that stand for themselves
_ALPHABET = frozenset(LETTERS)


def with_the_same_cuts(engine: Engine, described: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the tokenizer.json for kitoken, without a normalizer; None if cuts would differ.

    Args:
        engine: the tokenizer. If it encodes special tokens, they are text like any other.
        described: its tokenizer.json, with a byte-level BPE.
    """
    tokens: list[dict[str, Any]] = []
    ordinary: list[dict[str, Any]] = []
    for token in described["added_tokens"]:
        text = token["content"]
        if token["normalized"] and engine.normalizer is not None:
            text = engine.normalizer.normalize_str(text)
        one = {**token, "content": text, "special": True}
        (ordinary if token["special"] and engine.encode_special_tokens else tokens).append(one)
    model = _reachable(described["model"])
    if (
        any(token[name] for token in tokens for name in _CONDITIONS)
        or len({token["content"] for token in tokens}) < len(tokens)
        or _is_ambiguous(tokens, model["vocab"])
        # `tokenizers` finds these tokens too, and passes over them with all that they cover.
        or _touch(*([token["content"] for token in some] for some in (tokens, ordinary)))
    ):
        return None
    tokens.sort(key=lambda token: len(token["content"]), reverse=True)
    return {**described, "added_tokens": tokens, "model": model, "normalizer": None}


def _reachable(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model without tokens that no merge makes: kitoken would find them anyway."""
    if model.get("ignore_merges"):
        return dict(model)
    made = {"".join(pair).replace(" ", "") for pair in model["merges"]}  # or "a b", of old files
    vocabulary = model["vocab"]
    kept = {text: n for text, n in vocabulary.items() if len(text) == 1 or text in made}
    return {**model, "vocab": kept}


def _is_ambiguous(tokens: Iterable[Mapping[str, Any]], vocabulary: Mapping[str, int]) -> bool:
    """Return True if the text or id of a token stands for other bytes in the vocabulary."""
    owners = {number: text for text, number in vocabulary.items()}
    for token in tokens:
        text, letters = token["content"], set(token["content"])
        if text in vocabulary and letters <= _ALPHABET and not letters <= _ORDINARY:
            return True
        if owners.get(token["id"], text) != text:
            return True
    return False


def _touch(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return True if a token of each list can share characters in some text."""
    begins = {text[:n] for text in others for n in range(1, len(text))}
    ends = {text[-n:] for text in others for n in range(1, len(text))}
    if any(text[-n:] in begins or text[:n] in ends for text in some for n in range(1, len(text))):
        return True
    return any(_holds(text, {*others}) for text in some) or any(
        _holds(text, {*some}) for text in others
    )


def _holds(text: str, few: Collection[str]) -> bool:
    """Return True if one of `few` occurs in the text."""
    sizes = {len(one) for one in few if len(one) <= len(text)}
    return any(text[at : at + n] in few for n in sizes for at in range(len(text) - n + 1))


def texts_of(tokens: Sequence[str]) -> list[str]:
    """Return texts with every added token inside words, and with tokens that overlap.

    They also hold every byte that occurs in UTF-8.
    """
    begins = {token[:n]: token for token in tokens for n in range(1, len(token))}
    texts = ["".join(map(chr, part)) for part in _CHARACTERS]
    for token in tokens:
        half = len(token) // 2
        texts.append(f"x{token}y{token}{token} {token} {token[1:]}{token}{token[:-1]}\n{token}")
        texts.append(f"{token[:half]}{token}{token[half:]}é{token}人{token}{token.upper()}.{token}")
        for n in range(1, len(token)):
            other = begins.get(token[n:], "")
            texts += [f"a{token}{other[len(token) - n :]}b {other}{token}"] if other else []
    return texts


_CHARACTERS = (
    range(128),
    range(0x80, 0x800, 65),
    (*range(0x800, 0xD800, 0x1041), *range(0xE000, 0x10000, 0x1041)),
    range(0x10000, 0x110000, 0x10041),
)
