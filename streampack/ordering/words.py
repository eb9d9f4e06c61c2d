"""Words of texts as numbers, so that texts without a tokenizer are embedded and compared.

Steps, over the bytes of UTF-8:
  1. Letters and digits of ASCII, and characters of two bytes (Latin, Greek, Cyrillic, Arabic) or
     below U+2000, that follow one another are a word; any other character is one by itself: signs,
     and scripts that put no spaces between words. White space separates words and is none.
  2. A word is hashed to 32 bits (FNV-1a).

Cost: O(bytes). Lost: capital letters stay different from small ones, and words may collide.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents.blocks import Documents, make_origin


def hash_words(
    text: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[Documents, NDArray[np.int64]]:
    """N texts as documents of W words, and the byte after each word.

    Args:
        text: (T,) uint8, UTF-8; text i is ``text[offsets[i]:offsets[i + 1]]``.
        offsets: (N + 1,) int64.

    Returns:
        The documents, of uint32, and (W,) int64 places in `text`.
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
    """Fill all three; returns the number of words."""
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
    """Whether a character that begins with this byte joins others to a word."""
    small = 97 <= byte <= 122 or 65 <= byte <= 90 or 48 <= byte <= 57 or byte == 95
    return small or 0xC3 <= byte <= 0xE1


@kernel
def _width(byte: int) -> int:
    """Bytes of the character that begins with this one; of a stray byte, itself."""
    if byte < 0xC0:
        return 1
    if byte < 0xE0:
        return 2
    return 3 if byte < 0xF0 else 4
