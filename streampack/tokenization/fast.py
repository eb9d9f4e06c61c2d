"""Encoding by kitoken: the ids of `tokenizers` for byte-level BPE, several times faster.

A tokenizer is eligible only if kitoken supports every part of it exactly: byte-level BPE with the
pattern of GPT-2 or explicit patterns, no normalizer or NFC, and added tokens at which kitoken can
split texts in the same way (`added_tokens`). Every process compares the ids of both: first on the
given texts, on `HOSTILE` and on texts with the added tokens, and later on one text in 251.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import compress
from operator import not_
from typing import Any, Literal, TypeVar
from unicodedata import is_normalized
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Engine

from streampack.cached import cached_property
from streampack.errors import ConfigError
from streampack.extras import pip_command
from streampack.notices import is_first
from streampack.tokenization.added_tokens import texts_of, with_the_same_cuts
from streampack.tokenization.byte_level import (
    GPT2,
    GPT2_JOINED,
    Span,
    TokenPlaces,
    joined_white_space,
    patterns,
)

logger = logging.getLogger(__name__)

EngineName = Literal["auto", "tokenizers", "kitoken"]
Result = TypeVar("Result")

CHECKED_EVERY = 251  # in texts; prime, so that periodic corpora hide no difference
PROOF_CHARACTERS = 1 << 18  # characters of the corpus to compare before the first ids are used
LONG_RUN = 20_000  # in characters
#: On such runs, patterns with lookahead exhaust the stack or take minutes.
_LONG_RUN = re.compile(rf"[\s\x00-\x1f\x7f]{{{LONG_RUN}}}")

HOSTILE = (
    *("", " ", "  ", "\n", "\r\n\r\n", " \n \t ", "a  b   c", "\n's", "x\n'll ", "it's I'M we'Re"),
    *("\u00a0's", "a\u3000\u3000b", "\u2003\u2028\u2029\x85", "\ufeffa\u200bb\u200dc", "\x00\x01"),
    *("e\u0301\u0308", "\u0301", "n\u0303o\u0308", "\u1100\u1161\u11a8", "İıſßǅ", "ﬁ", "½²Ⅷⓐ"),
    *("0123456789", "1234 5", "٣४๕", "你好,世界。カタカナ한국어", "العربية हिन्दी ไทย", "Ꭰꭰ"),
    *(
        "🙂👍🏽👨‍👩‍👧🇩🇪",
        "𝒜𝔅\U0010ffff\ue000\ufffd",
        "<|endoftext|>",
        " <|endoftext|> x",
        "<|end",
        "</s><s>",
    ),
    *("a" * 3000, " " * 3000 + "x", "\n" * 3000, "!?" * 1500, "7" * 1000, "人" * 1000),
    *("http://a.b/c?d=e&f#g", "snake_case CamelCase", "(\t{[x]}\t);  # y", "--__--", "'\"`´’‘"),
)


class FastEngine:
    """Encoder with kitoken that returns the ids of `tokenizers`; see `fast_engine`.

    Args:
        engine: the reference; its setting for special tokens in texts applies.
        described: its tokenizer.json, with added tokens converted for kitoken.
        cuts: patterns that split a text before BPE.
    """

    def __init__(self, engine: Engine, described: dict[str, Any], cuts: list[str]) -> None:
        self._reference = engine
        self._left_out, self._shortest = _LONG_RUN, LONG_RUN
        if cuts == [GPT2]:
            joined = joined_white_space(described["model"]["vocab"])
            if not any(character.isascii() for character in joined):
                cuts = [GPT2_JOINED]
                self._left_out = re.compile(rf"[{''.join(sorted(joined))}]\S" if joined else "(?!)")
                self._shortest = 2
        # Normalizers have different versions of Unicode. Text that is NFC by Python's newer version
        # is also NFC by the older one of tokenizers, and needs no normalizer.
        self._composed = engine.normalizer is not None
        added = [token.content for token in engine.get_added_tokens_decoder().values()]
        added += [token["content"] for token in described["added_tokens"]]
        self._added = [*dict.fromkeys(added)]  # in original and normalized form
        self._described, self._patterns = json.dumps(described).encode(), tuple(cuts)
        self._proved = False
        self._count = 0

    def encode(self, texts: Sequence[str]) -> list[list[int]] | None:
        """Encode texts; return None if the first comparison fails and the engine must not be used.

        Raises:
            ConfigError: a later comparison fails, after ids have been used.
            UnicodeEncodeError: a text has lone surrogates.
            TypeError: a text is not a string.
        """
        if not self._proved:
            proof = [*_sample(texts), *HOSTILE, *texts_of(self._added)]
            if (text := self._difference(proof)) is not None:
                if is_first(f"kitoken differs {crc32(self._described)}"):
                    logger.warning(
                        "kitoken and tokenizers give other ids for %.200r: tokenizers is used, "
                        "which is several times slower.",
                        text,
                    )
                return None
            self._proved = True
        first = -self._count % CHECKED_EVERY
        self._count += len(texts)
        if (text := self._difference(texts[first::CHECKED_EVERY])) is not None:
            raise ConfigError(
                f"kitoken must give the ids of tokenizers, but differs for {text!r:.200}.",
                "Resume from an earlier checkpoint with "
                'streampack.Tokenizer(..., engine="tokenizers").',
                setting="engine",
            )
        return self._encode(texts)

    def mask(
        self, text: str, ids: Sequence[int], spans: Sequence[Span]
    ) -> NDArray[np.bool_] | None:
        """Return a mask of the tokens that overlap `spans`; see `TokenPlaces.mask`."""
        return None if self._is_changed(text) else self._places.mask(text, ids, spans)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        left_out = [*map(self._is_left_out, texts)]
        if not any(left_out):
            return self._by_kitoken(texts)
        taken = iter(self._by_kitoken([*compress(texts, map(not_, left_out))]))
        return [
            self._slow(text) if slow else next(taken)
            for text, slow in zip(texts, left_out, strict=True)
        ]

    def _is_left_out(self, text: str) -> bool:
        if len(text) >= self._shortest and self._left_out.search(text) is not None:
            return True
        return self._is_changed(text)

    def _is_changed(self, text: str) -> bool:
        return self._composed and not text.isascii() and not is_normalized("NFC", text)

    @cached_property
    def _places(self) -> TokenPlaces:
        return TokenPlaces(self._reference)

    def _by_kitoken(self, texts: Sequence[str]) -> list[list[int]]:
        return _in_thread(_encode_all, self._described, self._patterns, list(texts))

    def _slow(self, text: str) -> list[int]:
        ids: list[int] = self._reference.encode(text, add_special_tokens=False).ids
        return ids

    def _difference(self, texts: Sequence[str]) -> str | None:
        """Return the first text for which the engines disagree, or None."""
        for text, ids in zip(texts, self._encode(texts) if texts else [], strict=True):
            if ids != self._slow(text):
                return text
        return None


def fast_engine(engine: Engine, name: EngineName) -> FastEngine | None:
    """Return the fast engine for a tokenizer, or None if it has none and `name` is "auto".

    Raises:
        ConfigError: `name` is "kitoken", which is not installed or does not support the tokenizer.
    """
    if name == "tokenizers":
        return None
    described = json.loads(engine.to_str())
    cuts = patterns(described)
    described = None if cuts is None else with_the_same_cuts(engine, described)
    installed = find_spec("kitoken") is not None
    if cuts is not None and described is not None and installed:
        return FastEngine(engine, described, cuts)
    if name == "kitoken":
        raise ConfigError(
            'engine="kitoken" needs a plain byte-level BPE tokenizer, which this one is not.'
            if installed
            else 'engine="kitoken" needs kitoken, which is not installed.',
            'Pass engine="auto" or "tokenizers"'
            + ("." if installed else f", or run `{pip_command('fast')}`."),
            setting="engine",
        )
    if not installed and described is not None:
        _warn_missing()
    return None


def _warn_missing() -> None:
    if not is_first("kitoken is missing"):
        return
    logger.warning(
        "kitoken is not installed: texts are encoded by tokenizers, which is several times slower. "
        '`%s` brings it; engine="tokenizers" is without this warning.',
        pip_command("fast"),
    )


def _sample(texts: Sequence[str]) -> list[str]:
    """Return the first texts, up to `PROOF_CHARACTERS` characters in total."""
    chosen, left = [], PROOF_CHARACTERS
    for text in texts:
        left -= len(text)
        if left < 0:
            break
        chosen.append(text)
    return chosen


# ------------------------------------------------------------------ the thread that calls kitoken

#: One thread creates, uses and deletes all kitoken objects, because kitoken's allocator fails when
#: threads come and go. Other threads run meanwhile, since kitoken releases the GIL.
_thread = ThreadPoolExecutor(1, "streampack-tokenize")
_opened: dict[tuple[bytes, tuple[str, ...]], Any] = {}
_of_parents: list[Any] = []
KEPT = 4  # number of tokenizers kept


def _after_fork() -> None:
    global _thread, _opened
    _of_parents.append(_opened)  # never freed: a fork does not copy the thread that owns them
    _thread, _opened = ThreadPoolExecutor(1, "streampack-tokenize"), {}


os.register_at_fork(after_in_child=_after_fork)


def _in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    return _thread.submit(function, *arguments).result()


def _encode_all(described: bytes, patterns: tuple[str, ...], texts: list[str]) -> list[list[int]]:
    key = described, patterns
    if key not in _opened:
        from kitoken import Kitoken

        while len(_opened) >= KEPT:
            del _opened[next(iter(_opened))]
        opened = Kitoken.from_tokenizers(described)
        split = [
            {"Pattern": {"pattern": {"Regex": regex}, "behavior": "Isolate"}} for regex in patterns
        ]
        opened.set_config({**opened.config(), "split": split})
        _opened[key] = opened
    ids: list[list[int]] = _opened[key].encode_all(texts, True)
    return ids
