"""Encoding by gigatoken: the ids of `tokenizers` for BPE at many times the speed.

A tokenizer is eligible only if gigatoken supports every part of it exactly: byte-level BPE with
known patterns (`byte_level`), no normalizer or NFC, or SentencePiece BPE (`byte_fallback`), and
added tokens at which gigatoken can split texts in the same way (`added_tokens`). Texts with rare
properties are left to `tokenizers`. Every process compares the ids of both: first on the given
texts, on `HOSTILE` and on texts with the added tokens, and later on one text in 4,001.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from bisect import bisect_right
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal
from unicodedata import category, is_normalized
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Engine

from streampack.cached import cached_property
from streampack.errors import ConfigError
from streampack.extras import pip_command
from streampack.notices import is_first
from streampack.tokenization.added_tokens import (
    texts_of,
    with_clear_vocabulary,
    with_the_same_cuts,
)
from streampack.tokenization.byte_level import known_patterns

if TYPE_CHECKING:
    from streampack.tokenization.spans import Span, TokenPlaces

logger = logging.getLogger(__name__)

EngineName = Literal["auto", "tokenizers", "gigatoken"]
Flat = tuple[NDArray[np.uint32], NDArray[np.int64]]

CHECKED_EVERY = 4001  # in texts; prime, so that periodic corpora hide no difference
PROOF_CHARACTERS = 1 << 16  # characters of the corpus to compare before the first ids are used
LONG_TEXT = 1 << 18  # characters; longer ones are encoded without the interpreter's lock
MOST_GROWTH = 512 << 20  # bytes of the process after which the engine is loaded anew
LEAST_RENEWED = 32 << 20  # characters: the process may have grown for another reason
MOST_UNSEEN = 2 << 30  # characters, where the size of the process cannot be read

HOSTILE = (
    *("", " ", "  ", "\n", "\r\n\r\n", " \n \t ", "a  b   c", "\n's", "x\n'll ", "it's I'M we'Re"),
    *("\u00a0's", "a\u3000\u3000b", "\u2003\u2028\u2029\x85", "\ufeffa\u200bb\u200dc", "\x00\x01"),
    *("e\u0301\u0308", "\u0301", "n\u0303o\u0308", "\u1100\u1161\u11a8", "İıſßǅ", "ﬁ", "½²Ⅷⓐ"),
    *("0123456789", "1234 5", "٣४๕", "你好,世界。カタカナ한국어", "العربية हिन्दी ไทย", "Ꭰꭰ"),
    *("🙂👍🏽👨‍👩‍👧🇩🇪", "𝒜𝔅\U0010ffff\ue000\ufffd"),
    *("<|endoftext|>", " <|endoftext|> x", "<|end", "</s><s>"),
    *("a" * 3000, " " * 3000 + "x", "\n" * 3000, "!?" * 1500, "7" * 1000, "人" * 1000),
    *("http://a.b/c?d=e&f#g", "snake_case CamelCase", "(\t{[x]}\t);  # y", "--__--", "'\"`´’‘"),
)


class Gigatoken:
    """BPE by gigatoken. Its caches of words have no bound, so it is loaded anew now and then."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._idle: list[Any] = []  # one engine for each thread that encodes at the same time
        self._encoded = self._size = 0

    def encode(self, texts: Sequence[str]) -> Flat:
        """Return the ids (T,) of all texts, and their number (N,) for each text.

        Args:
            texts: N strings without lone surrogates. Nothing else may be passed: gigatoken does
                not check that bytes are UTF-8.
        """
        self._encoded += sum(map(len, texts))
        if self._has_grown():
            self._idle.clear()
        try:
            engine = self._idle.pop()
        except IndexError:
            engine = self._load()
        try:
            ids = [_encode_one(engine, text) for text in texts]
        finally:
            self._idle.append(engine)
        counts = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.concatenate([np.zeros(0, np.uint32), *ids]), counts

    def _load(self) -> Any:
        from gigatoken import gigatoken_rs

        if hasattr(gigatoken_rs, "set_max_cache_bytes"):
            gigatoken_rs.set_max_cache_bytes(MOST_GROWTH)
        engine = gigatoken_rs.load_hf_json(self._source)
        self._encoded, self._size = 0, _process_bytes()
        return engine

    def _has_grown(self) -> bool:
        if self._encoded < LEAST_RENEWED:
            return False
        if self._size == 0:
            return self._encoded > MOST_UNSEEN
        return _process_bytes() - self._size > MOST_GROWTH


def _encode_one(engine: Any, text: str) -> Any:
    if len(text) <= LONG_TEXT:
        return engine.encode(text)
    from gigatoken.gigatoken_rs import BytesSource, PadTruncate

    source = BytesSource([text.encode()])
    rows, _ = engine.encode_batch_padded(source, PadTruncate(0), parallel=False)
    return rows[0]


def _process_bytes() -> int:
    """Return the resident memory of the process, or 0 if the system does not tell it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class FastEngine:
    """Encoder with gigatoken that returns the ids of `tokenizers`; see `fast_engine`.

    Args:
        engine: the reference; its setting for special tokens in texts applies.
        described: its tokenizer.json for gigatoken.
    """

    def __init__(self, engine: Engine, described: dict[str, Any]) -> None:
        self._reference = engine
        self._is_byte_level = not described["model"].get("byte_fallback")
        # Normalizers have different versions of Unicode. Text that is NFC by Python's newer version
        # is also NFC by the older one of tokenizers, and needs no normalizer.
        steps = engine.normalizer
        self._composed = steps is not None and steps.normalize_str("e\u0301") == "é"
        tokens = engine.get_added_tokens_decoder().values()
        added = [token.content for token in tokens]
        self._left_out = [token.content for token in tokens if token.normalized]
        added += [token["content"] for token in described["added_tokens"]]
        self._added = [*dict.fromkeys(added)]  # in original and normalized form
        source = json.dumps(described, ensure_ascii=False)
        self._fast = Gigatoken(source)
        self._number = crc32(source.encode())
        self._proved = False
        self._count = 0

    def encode(self, texts: Sequence[str]) -> Flat | None:
        """Encode as `Gigatoken.encode`; None if the first comparison fails: it must not be used.

        Raises:
            ConfigError: a later comparison fails, after ids have been used.
            UnicodeEncodeError: a text has lone surrogates.
            TypeError: a text is not a string.
        """
        if not self._proved:
            proof = [*_sample(texts), *HOSTILE, *texts_of(self._added)]
            if (text := self._difference(proof)) is not None:
                if is_first(f"gigatoken differs {self._number}"):
                    logger.warning(
                        "gigatoken and tokenizers give other ids for %.200r: tokenizers is used, "
                        "which is many times slower.",
                        text,
                    )
                return None
            self._proved = True
        first = -self._count % CHECKED_EVERY
        self._count += len(texts)
        if (text := self._difference(texts[first::CHECKED_EVERY])) is not None:
            raise ConfigError(
                f"gigatoken must give the ids of tokenizers, but differs for {text!r:.200}.",
                "Resume from an earlier checkpoint with "
                'streampack.Tokenizer(..., engine="tokenizers").',
                setting="engine",
            )
        return self._encode(texts)

    def mask(
        self, text: str, ids: NDArray[np.uint32], spans: Sequence[Span]
    ) -> NDArray[np.bool_] | None:
        """Return a mask of the tokens that overlap `spans`; see `TokenPlaces.mask`."""
        taken = self._is_byte_level and self._is_composed(text)
        return self._places.mask(text, ids, spans) if taken else None

    def _encode(self, texts: Sequence[str]) -> Flat:
        left_out: list[int] = []
        uncertain = [*range(len(texts))]
        if self._is_byte_level:
            uncertain = [i for i, text in enumerate(texts) if not str.isascii(text)]
        if uncertain and not self._takes("".join(texts[i] for i in uncertain)):
            left_out = [i for i in uncertain if not self._takes(texts[i])]
        if not left_out:
            return self._fast.encode(texts)
        others = set(left_out)
        ids, counts = self._fast.encode([t for i, t in enumerate(texts) if i not in others])
        pieces = np.split(ids, counts.cumsum())[:-1]
        for i in left_out:
            pieces.insert(i, np.array(self._slow(texts[i]), np.uint32))
        return np.concatenate(pieces), np.fromiter(map(len, pieces), np.int64, len(pieces))

    def _takes(self, text: str) -> bool:
        if not self._is_byte_level:
            return not any(token in text for token in self._left_out)
        return not _has_new_characters(text) and self._is_composed(text)

    def _is_composed(self, text: str) -> bool:
        return not self._composed or is_normalized("NFC", text)

    @cached_property
    def _places(self) -> TokenPlaces:
        from streampack.tokenization.spans import TokenPlaces

        return TokenPlaces(self._reference)

    def _slow(self, text: str) -> Any:
        return self._reference.encode(text, add_special_tokens=False).ids

    def _difference(self, texts: Sequence[str]) -> str | None:
        """Return the first text for which the engines disagree, or None."""
        ids, counts = self._encode(texts)
        for text, each in zip(texts, np.split(ids, counts.cumsum()), strict=False):
            if each.tolist() != self._slow(text):
                return text
        return None


#: Code points from which no character is in `_new_characters`, and of the first one that is.
_END, _FIRST = 0x2A6DE, 0x378


@functools.cache
def _new_characters() -> NDArray[np.bool_]:
    """Return an (N,) mask of the code points that were no character in Python's Unicode.

    gigatoken and `tokenizers` have different, newer versions. Ideographs, syllables and private
    characters are old. Code points behind the mask count as its last element, which is new.
    """
    new = np.zeros(_END + 1, dtype=np.bool_)
    for start, stop in ((0, 0x3400), (0xA000, 0xAC00), (0xD7A4, 0x20000)):
        kinds = map(category, map(chr, range(start, stop)))
        new[start:stop] = np.fromiter(map("Cn".__eq__, kinds), np.bool_, stop - start)
    new[_END] = True
    return new


def _has_new_characters(text: str) -> bool:
    for start in range(0, len(text), 1 << 20):
        part = text[start : start + (1 << 20)]
        points = np.frombuffer(part.encode("utf-32-le"), dtype=np.uint32)
        if _new_characters().take(points[points >= _FIRST], mode="clip").any():
            return True
    return False


def fast_engine(engine: Engine, name: EngineName, source: str | None = None) -> FastEngine | None:
    """Return the fast engine for a tokenizer, or None if it has none and `name` is "auto".

    Args:
        engine: the tokenizer.
        name: see `Tokenizer`.
        source: its tokenizer.json, if that is at hand.

    Raises:
        ConfigError: `name` is "gigatoken", which is not installed or does not support the
            tokenizer.
    """
    if name == "tokenizers":
        return None
    described = _for_gigatoken(engine, json.loads(source or engine.to_str()))
    installed = find_spec("gigatoken") is not None
    if described is not None and installed:
        return FastEngine(engine, described)
    if name == "gigatoken":
        raise ConfigError(
            'engine="gigatoken" needs a byte-level BPE with usual patterns, or SentencePiece BPE.'
            if installed
            else 'engine="gigatoken" needs gigatoken, which is not installed.',
            'Pass engine="auto" or "tokenizers"'
            + ("." if installed else f", or run `{pip_command('fast')}`."),
            setting="engine",
        )
    if described is not None and is_first("gigatoken is missing"):
        logger.warning(
            "gigatoken is not installed: texts are encoded by tokenizers, which is many times "
            'slower. `%s` brings it; engine="tokenizers" is without this warning.',
            pip_command("fast"),
        )
    return None


def _for_gigatoken(engine: Engine, described: dict[str, Any]) -> dict[str, Any] | None:
    """Return the tokenizer.json from which gigatoken gives the same ids, or None."""
    if described["model"].get("byte_fallback"):
        from streampack.tokenization.byte_fallback import with_byte_fallback

        plain = with_byte_fallback(described)
        return plain and with_the_same_cuts(engine, plain)
    patterns = known_patterns(described)
    converted = None if patterns is None else with_the_same_cuts(engine, described)
    converted = converted and with_clear_vocabulary(converted)
    if converted is None or patterns is None:
        return None
    cuts = [{"type": "Split", "pattern": {"Regex": pattern}} for pattern in patterns]
    return {**converted, "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts}}


def _sample(texts: Sequence[str]) -> Sequence[str]:
    """Return the first texts, up to `PROOF_CHARACTERS` characters in total."""
    return texts[: bisect_right([*accumulate(map(len, texts))], PROOF_CHARACTERS)]
