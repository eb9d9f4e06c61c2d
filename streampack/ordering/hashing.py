"""The default embedder: hashed n-grams of tokens or words, the same on every machine.

Steps, for each document:
  1. Each n-gram of its tokens, n = 1 to `ngrams`, gets a 64-bit hash: ``h = n``, then for each of
     its tokens ``h = mix(h + token)``, all modulo 2**64, where `mix` is the step of splitmix64.
  2. Equal hashes are counted. A hash that occurs c times has the weight ``c.bit_length()``, so that
     frequent tokens do not outweigh all others.
  3. The weight is added to component ``h % dimension``, negated if the top bit of h is set, so that
     n-grams that share a component cancel as often as they add up.

Cost: O(tokens * ngrams), about 40 ns per token by default. Lost: the positions of n-grams, and any
similarity without common tokens. The components are integers, and their absolute values sum to at
most `ngrams` times the document's tokens. So float32 holds them exactly, and products of vectors
are exact in any order of summation (see `neighbours`).

Source: signed feature hashing is from K. Weinberger et al., "Feature Hashing for Large Scale
Multitask Learning", ICML 2009. `bm25` weights tokens by document frequency instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel, kernel_of
from streampack.arguments import whole_number
from streampack.documents.blocks import Documents, make_origin
from streampack.packing.rng import mix


@dataclass(frozen=True, kw_only=True)
class HashedNgrams:
    """Embeds documents by the n-grams of their tokens.

    Args:
        dimension: components per vector; more components collide less and cost more to compare.
        ngrams: length of the longest n-gram. A tokenizer with few ids (bytes) needs 3.
    """

    dimension: int = 1024
    ngrams: int = 2

    exact: ClassVar[bool] = True
    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name, most in (("dimension", 1 << 16), ("ngrams", 8)):
            value = whole_number(name, getattr(self, name), most=most)
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """Name of this embedder in the fingerprint."""
        return f"hashed-ngrams-{self.revision}-{self.dimension}-{self.ngrams}"

    def __call__(self, documents: Documents) -> NDArray[np.float32]:
        """Return vectors (N, dimension) float32 with integer values."""
        vectors = np.zeros((len(documents), self.dimension), dtype=np.float32)
        longest = int(documents.lengths.max(initial=0)) * self.ngrams
        slots = 1 << max(longest * 2 - 1, 1).bit_length()  # so that the table is at most half full
        _hash_ngrams(documents.tokens, documents.offsets, self.ngrams, slots, vectors)
        return vectors


@kernel_of(lambda tokens, _, ngrams, *__: 3 * tokens.size * ngrams * (ngrams + 1))
def _hash_ngrams(
    tokens: NDArray[np.generic],
    offsets: NDArray[np.int64],
    ngrams: int,
    slots: int,
    vectors: NDArray[np.float32],
) -> None:
    """Write the vectors of all documents; `slots`, a power of two, bounds distinct n-grams."""
    dimension = np.uint64(vectors.shape[1])
    keys = np.zeros(slots, dtype=np.uint64)
    counts = np.zeros(slots, dtype=np.int64)
    used = np.empty(slots, dtype=np.int64)
    for i in range(len(offsets) - 1):
        ids = tokens[offsets[i] : offsets[i + 1]]
        distinct = 0
        for n in range(1, ngrams + 1):
            for first in range(len(ids) - n + 1):
                h = np.uint64(n)
                for token in ids[first : first + n]:
                    h = mix(h + np.uint64(token) + np.uint64(0x9E3779B97F4A7C15))
                slot = np.int64(h & np.uint64(slots - 1))
                while counts[slot] > 0 and keys[slot] != h:
                    slot = (slot + 1) & (slots - 1)
                if counts[slot] == 0:
                    keys[slot] = h
                    used[distinct] = slot
                    distinct += 1
                counts[slot] += 1
        vector = vectors[i]
        for slot in used[:distinct]:
            h, count = keys[slot], counts[slot]
            counts[slot] = 0
            weight = 0
            while count > 0:
                weight += 1
                count >>= 1
            if h >> np.uint64(63):
                weight = -weight
            vector[np.int64(h % dimension)] += np.float32(weight)


def hash_words(
    text: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[Documents, NDArray[np.int64]]:
    """Convert N texts to documents of W hashed words, and return the end of each word.

    Steps, over the bytes of UTF-8:
      1. A word is a run of ASCII letters and digits and of characters of two bytes (Latin, Greek,
         Cyrillic, Arabic) or below U+2000. Any other character is a word by itself: signs, and
         scripts without spaces between words. White space only separates words.
      2. A word is hashed to 32 bits (FNV-1a).

    Cost: O(bytes). Limits: words are case-sensitive, and their hashes may collide.

    Args:
        text: (T,) uint8, UTF-8; text i is ``text[offsets[i]:offsets[i + 1]]``.
        offsets: (N + 1,) int64.

    Returns:
        The documents, with uint32 ids, and the offset (W,) int64 in `text` after each word.
    """
    words = np.empty(offsets[-1] - offsets[0], dtype=np.uint32)
    ends = np.empty(len(words), dtype=np.int64)
    bounds = np.zeros(len(offsets), dtype=np.int64)
    count = _hash_words(text, offsets, words, ends, bounds)
    origin = make_origin(0, np.arange(len(offsets) - 1, dtype=np.int64))
    return Documents(words[:count].copy(), bounds, origin), ends[:count].copy()


@kernel
def _hash_words(
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    words: NDArray[np.uint32],
    ends: NDArray[np.int64],
    bounds: NDArray[np.int64],
) -> int:
    """Fill the three output arrays; return the number of words."""
    count = 0
    for i in range(len(offsets) - 1):
        at, stop = offsets[i], offsets[i + 1]
        inside = False
        h = np.uint32(0)
        while at < stop:
            byte = text[at]
            letter = _is_letter(byte)
            if byte <= 32:
                inside = False
                at += 1
                continue
            if not letter or not inside:
                h = np.uint32(2166136261)
                count += 1
            width = _width(byte)
            for _ in range(min(width, stop - at)):
                h = np.uint32((np.uint64(h) ^ np.uint64(text[at])) * np.uint64(16777619))
                at += 1
            words[count - 1] = h
            ends[count - 1] = at
            inside = letter
        bounds[i + 1] = count
    return count


@kernel
def _is_letter(byte: int) -> bool:
    """Return True if a character with this first byte joins its neighbours to a word."""
    small = 97 <= byte <= 122 or 65 <= byte <= 90 or 48 <= byte <= 57 or byte == 95
    return small or 0xC3 <= byte <= 0xE1


@kernel
def _width(byte: int) -> int:
    """Return the number of bytes of a character with this first byte; 1 for a stray byte."""
    if byte < 0xC0:
        return 1
    if byte < 0xE0:
        return 2
    return 3 if byte < 0xF0 else 4
