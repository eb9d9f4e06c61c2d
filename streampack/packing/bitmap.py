"""Bitmap: a two-level set of small integers for compiled code.

Bit i of `words` is set if i is a member, and bit w of `summary` if words[w] is not zero. Finding
the next member takes a few instructions for sets below 4096, and one more per 4096 above.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import Instruction, kernel


class Bitmap(NamedTuple):
    """Set of integers in [0, size), which kernels change in place."""

    words: NDArray[np.uint64]
    summary: NDArray[np.uint64]


_trailing_zeros = Instruction(
    "trailing_zeros", lambda word: (int(word) & -int(word)).bit_length() - 1
)
_leading_zeros = Instruction("leading_zeros", lambda word: 64 - int(word).bit_length())


@kernel
def _index_of_lowest_bit(word: np.uint64) -> int:
    return np.int64(_trailing_zeros(word))  # type: ignore[return-value]


@kernel
def _index_of_highest_bit(word: np.uint64) -> int:
    return 63 - np.int64(_leading_zeros(word))  # type: ignore[return-value]


@kernel
def new_bitmap(size: int) -> Bitmap:
    """Return an empty set for integers in [0, size)."""
    words = np.zeros((size + 63) // 64, dtype=np.uint64)
    return Bitmap(words, np.zeros(len(words) // 64 + 1, dtype=np.uint64))


@kernel
def set_bit(bitmap: Bitmap, i: int) -> None:
    """Add i to the set."""
    bitmap.words[i >> 6] |= np.uint64(1) << np.uint64(i & 63)
    bitmap.summary[i >> 12] |= np.uint64(1) << np.uint64((i >> 6) & 63)


@kernel
def clear_bit(bitmap: Bitmap, i: int) -> None:
    """Remove i from the set."""
    words, summary = bitmap
    words[i >> 6] &= ~(np.uint64(1) << np.uint64(i & 63))
    if words[i >> 6] == 0:
        summary[i >> 12] &= ~(np.uint64(1) << np.uint64((i >> 6) & 63))


@kernel
def next_set(bitmap: Bitmap, least: int) -> int:
    """Return the smallest member >= least, or -1."""
    words, summary = bitmap
    w = least >> 6
    if w >= len(words):
        return -1
    word = (words[w] >> np.uint64(least & 63)) << np.uint64(least & 63)
    if word != 0:
        return (w << 6) + _index_of_lowest_bit(word)
    w += 1
    s = w >> 6
    if s >= len(summary):
        return -1
    word = (summary[s] >> np.uint64(w & 63)) << np.uint64(w & 63)
    while word == 0:
        s += 1
        if s >= len(summary):
            return -1
        word = summary[s]
    w = (s << 6) + _index_of_lowest_bit(word)
    return (w << 6) + _index_of_lowest_bit(words[w])


@kernel
def previous_set(bitmap: Bitmap, most: int) -> int:
    """Return the largest member <= most, or -1; `most` must be below the bitmap's size."""
    words, summary = bitmap
    w = most >> 6
    word = words[w] & (~np.uint64(0) >> np.uint64(63 - (most & 63)))
    if word != 0:
        return (w << 6) + _index_of_highest_bit(word)
    s = w >> 6
    word = summary[s] & ((np.uint64(1) << np.uint64(w & 63)) - np.uint64(1))
    while word == 0:
        s -= 1
        if s < 0:
            return -1
        word = summary[s]
    w = (s << 6) + _index_of_highest_bit(word)
    return (w << 6) + _index_of_highest_bit(words[w])
