"""A set of small integers as a bitmap of two levels, for compiled code.

Finding the next member takes a few instructions for sets below 4096 and one more per 4096 above.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel


class Bitmap(NamedTuple):
    """Bit i of `words` says that i is in the set; bit w of `groups` that words[w] is not zero."""

    words: NDArray[np.uint64]
    groups: NDArray[np.uint64]


@kernel
def _lowest_bit(word: np.uint64) -> int:
    """Index of the lowest set bit of a non-zero word."""
    index = 0
    while not word & np.uint64(1):
        word >>= np.uint64(1)
        index += 1
    return index


@kernel
def _highest_bit(word: np.uint64) -> int:
    """Index of the highest set bit of a non-zero word."""
    index = -1
    while word:
        word >>= np.uint64(1)
        index += 1
    return index


@kernel
def new_bitmap(size: int) -> Bitmap:
    """The empty set of integers below `size`."""
    words = np.zeros((size + 63) // 64, dtype=np.uint64)
    return Bitmap(words, np.zeros(len(words) // 64 + 1, dtype=np.uint64))


@kernel
def set_bit(bits: Bitmap, i: int) -> None:
    """Add i."""
    bits.words[i >> 6] |= np.uint64(1) << np.uint64(i & 63)
    bits.groups[i >> 12] |= np.uint64(1) << np.uint64((i >> 6) & 63)


@kernel
def clear_bit(bits: Bitmap, i: int) -> None:
    """Remove i."""
    bits.words[i >> 6] &= ~(np.uint64(1) << np.uint64(i & 63))
    if bits.words[i >> 6] == 0:
        bits.groups[i >> 12] &= ~(np.uint64(1) << np.uint64((i >> 6) & 63))


@kernel
def next_set(bits: Bitmap, least: int) -> int:
    """The smallest member >= least, or -1."""
    words, groups = bits
    w = least >> 6
    if w >= len(words):
        return -1
    word = (words[w] >> np.uint64(least & 63)) << np.uint64(least & 63)
    if word != 0:
        return (w << 6) + _lowest_bit(word)
    w += 1
    g = w >> 6
    if g >= len(groups):
        return -1
    group = (groups[g] >> np.uint64(w & 63)) << np.uint64(w & 63)
    while group == 0:
        g += 1
        if g >= len(groups):
            return -1
        group = groups[g]
    w = (g << 6) + _lowest_bit(group)
    return (w << 6) + _lowest_bit(words[w])


@kernel
def previous_set(bits: Bitmap, most: int) -> int:
    """The largest member <= most, or -1; `most` is below the bitmap's size."""
    words, groups = bits
    w = most >> 6
    word = words[w] & (~np.uint64(0) >> np.uint64(63 - (most & 63)))
    if word != 0:
        return (w << 6) + _highest_bit(word)
    g = w >> 6
    group = groups[g] & ((np.uint64(1) << np.uint64(w & 63)) - np.uint64(1))
    while group == 0:
        g -= 1
        if g < 0:
            return -1
        group = groups[g]
    w = (g << 6) + _highest_bit(group)
    return (w << 6) + _highest_bit(words[w])
