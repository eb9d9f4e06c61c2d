"""Conversion of added tokens so that gigatoken splits texts at them as `tokenizers` does.

`tokenizers` searches for added tokens twice: in the text for tokens that are not "normalized", and
in the normalized text between the tokens found there for the others. Each time the leftmost match
wins, and the longest of several at one position.

gigatoken searches once, by the same rule for all tokens. So no normalized token may overlap one of
the others that starts later, and its tokenizer.json has no vocabulary with ambiguous texts or ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Engine

from streampack.tokenization.byte_level import LETTERS

_CONDITIONS = ("lstrip", "rstrip", "single_word")
_ORDINARY = frozenset(map(chr, range(33, 127)))  # letters that encode their own byte
_ALPHABET = frozenset(LETTERS)


def with_the_same_cuts(engine: Engine, described: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the tokenizer.json for gigatoken, with the added tokens that it splits at.

    Args:
        engine: the tokenizer. If `encode_special_tokens` is set, special tokens are ordinary text.
        described: its tokenizer.json.

    Returns:
        The tokenizer.json, or None if gigatoken would cut texts elsewhere.
    """
    tokens: list[dict[str, Any]] = []
    ordinary: list[str] = []
    kinds: tuple[list[str], list[str]] = [], []
    for token in described["added_tokens"]:
        text = token["content"]
        if token["normalized"] and engine.normalizer is not None:
            text = engine.normalizer.normalize_str(text)
        if token["special"] and engine.encode_special_tokens:
            ordinary.append(text)
        else:
            tokens.append({**token, "content": text})
            kinds[token["normalized"]].append(text)
    if (
        any(token[name] for token in tokens for name in _CONDITIONS)
        or len({token["content"] for token in tokens}) < len(tokens)
        or _precede(kinds[1], kinds[0])
        # `tokenizers` also matches these tokens, and skips the text that they cover.
        or _touch([token["content"] for token in tokens], ordinary)
    ):
        return None
    return {**described, "added_tokens": tokens}


def with_clear_vocabulary(described: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a byte-level tokenizer.json without a normalizer and without unreachable tokens.

    Returns:
        The tokenizer.json, or None if an added token is ambiguous for gigatoken.
    """
    model = _reachable(described["model"])
    if _is_ambiguous(described["added_tokens"], model["vocab"]):
        return None
    return {**described, "model": model, "normalizer": None}


def _reachable(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model without the tokens that no text of bytes becomes.

    These are tokens with a character that encodes no byte, and tokens that no merge produces.
    """
    vocabulary, merges = model["vocab"], model["merges"]
    kept = set(vocabulary)
    if not _ALPHABET.issuperset("".join(vocabulary)):
        kept = {text for text in vocabulary if _ALPHABET.issuperset(text)}
        merges = [pair for pair in merges if kept.issuperset(pair)]
    if not model.get("ignore_merges"):
        kept &= {first + second for first, second in merges} | _ALPHABET
    vocabulary = {text: number for text, number in vocabulary.items() if text in kept}
    return {**model, "vocab": vocabulary, "merges": merges}


def _is_ambiguous(tokens: Iterable[Mapping[str, Any]], vocabulary: Mapping[str, int]) -> bool:
    """Return True if the text or id of a token means other bytes in the vocabulary."""
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
    return _precede(some, others) or _precede(others, some)


def _precede(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return True if one of `some` can share characters with one of `others` that starts in it."""
    begins = {text[:n] for text in others for n in range(1, len(text))}
    if any(text[-n:] in begins for text in some for n in range(1, len(text))):
        return True
    return any(_holds(text, {*others}) for text in some)


def _holds(text: str, few: Collection[str]) -> bool:
    """Return True if one of `few` occurs in the text."""
    sizes = {len(each) for each in few if len(each) <= len(text)}
    return any(text[at : at + n] in few for n in sizes for at in range(len(text) - n + 1))


def texts_of(tokens: Sequence[str]) -> list[str]:
    """Return test texts: added tokens, some of them inside words, overlapping ones, UTF-8 bytes."""
    begins = {token[:n]: token for token in tokens for n in range(1, len(token))}
    texts = ["y".join(tokens), *("".join(map(chr, part)) for part in _CHARACTERS)]
    for token in tokens[:: 1 + len(tokens) // 64]:
        half = len(token) // 2
        texts.append(f"x{token}y{token}{token} {token} {token[1:]}{token}{token[:-1]}\n{token}")
        texts.append(f"{token[:half]}{token}{token[half:]}é{token}人{token}{token.upper()}.{token}")
    for token in tokens:
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
