"""Columns of small numbers as short text, for states.

A column is mostly zero: steps between the numbers of documents that still wait, how far each is
delivered (often a multiple of the row length), when the round of arrival changes. Steps:

  1. The greatest common divisor of the values comes first. Then each value above zero becomes two
     numbers: the zeros before it, and its multiple of the divisor less one. The zeros behind the
     last value end the column. A column of zeros is the empty text.
  2. Each number is Rice-coded: its part above k bits in unary, then k bits; a number whose unary
     part would be long is written out instead. k follows the mean of the numbers before it, apart
     for the two kinds.
  3. The bits, lowest first, as base64.

Cost: O(values), a few nanoseconds for each above zero; about two bits more than its entropy each.

Source: R. Rice, "Some Practical Universal Noiseless Coding Techniques", JPL 79-22 (1979); the
running mean is that of M. Weinberger et al., "The LOCO-I Lossless Image Compression Algorithm"
(2000).
"""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel

__all__ = ["LARGEST", "decode_column", "encode_column"]

#: What the values of one column may add up to: JSON numbers are exact up to here.
LARGEST = 1 << 53

_LONG = 24  # ones of a unary part that say that the number is written out
_WIDE = 54  # bits of a number that is written out
_MEMORY = 32  # numbers over which the mean is taken


def encode_column(values: NDArray[np.int64]) -> str:
    """Values (N,) int64, none negative, their sum at most `LARGEST`, as text."""
    return base64.b64encode(_encode(values).tobytes()).decode()


def decode_column(text: str, count: int) -> NDArray[np.int64]:
    """The (count,) int64 values that `encode_column` wrote.

    Raises:
        ValueError: it wrote something else.
    """
    data = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    values = np.zeros(count, dtype=np.int64)
    if len(data) and not _decode(data, values):
        raise ValueError(f"{len(data)} bytes are no column of {count} values")
    return values


@kernel
def _encode(values: NDArray[np.int64]) -> NDArray[np.uint8]:
    numbers = _numbers(values)
    # One loop without calls that pass arrays: these cost more than the work itself.
    words = np.zeros(len(numbers) * (_LONG + _WIDE) // 64 + 2, dtype=np.uint64)
    at = 0
    total, count = np.ones(2, dtype=np.int64), np.ones(2, dtype=np.int64)
    for i in range(len(numbers)):
        number, kind = numbers[i], i & 1  # 0: a value or the divisor; 1: zeros
        k = _parameter(total[kind], count[kind])
        total[kind] += number
        count[kind] += 1
        if count[kind] >= _MEMORY:
            total[kind] >>= 1
            count[kind] >>= 1
        high = min(number >> k, _LONG)
        part, width = (1 << high) - 1, high + (high < _LONG)
        for _ in range(2):  # what is unary, and the rest
            offset = at & 63
            words[at >> 6] |= np.uint64(part) << np.uint64(offset)
            if offset + width > 64:
                words[(at >> 6) + 1] = np.uint64(part) >> np.uint64(64 - offset)
            at += width
            part, width = number, _WIDE
            if high < _LONG:
                part, width = number & ((1 << k) - 1), k
    out = np.empty((at + 7) // 8, dtype=np.uint8)
    for i in range(len(out)):  # the same bytes on any machine
        out[i] = np.uint8((words[i >> 3] >> np.uint64(8 * (i & 7))) & np.uint64(0xFF))
    return out


@kernel
def _numbers(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of step 1, in turn; none for a column of zeros."""
    count = 0
    for i in range(len(values)):
        count += values[i] != 0
    numbers = np.empty(2 * count + 2 if count else 0, dtype=np.int64)
    divisor = 0
    for value in values:
        while value != 0:
            divisor, value = value, divisor % value
            if divisor == 1:
                break
        if divisor == 1:
            break
    k, last = 0, -1
    if count:
        numbers[0] = divisor - 1
        k = 1
    for i in range(len(values)):
        if values[i] != 0:
            numbers[k] = i - last - 1
            numbers[k + 1] = values[i] // divisor - 1
            k += 2
            last = i
    if count:
        numbers[k] = len(values) - last - 1
    return numbers


@kernel
def _decode(data: NDArray[np.uint8], values: NDArray[np.int64]) -> bool:
    """Fill `values`, zeros before; False if the data does not describe as many."""
    total, count = np.ones(2, dtype=np.int64), np.ones(2, dtype=np.int64)
    at, end = 0, 8 * len(data)
    i, kind, divisor, sum_of_values = 0, 0, 0, 0
    while True:
        k = _parameter(total[kind], count[kind])
        high = 0
        while at < end and high < _LONG and (data[at >> 3] >> (at & 7)) & 1:
            high += 1
            at += 1
        at += high < _LONG
        width = k if high < _LONG else _WIDE
        if at + width > end:
            return False
        number = high << k if high < _LONG else 0
        for bit in range(width):
            number |= int((data[at >> 3] >> (at & 7)) & 1) << bit
            at += 1
        if number > LARGEST:
            return False
        total[kind] += number
        count[kind] += 1
        if count[kind] >= _MEMORY:
            total[kind] >>= 1
            count[kind] >>= 1
        if kind == 1:
            i += number
            if i >= len(values):
                break
        elif divisor == 0:
            divisor = number + 1
        else:
            if number >= (LARGEST - sum_of_values) // divisor:
                return False
            values[i] = (number + 1) * divisor
            sum_of_values += (number + 1) * divisor
            i += 1
        kind = 1 - kind
    rest = end - at
    return i == len(values) and rest < 8 and data[-1] >> (8 - rest) == 0


@kernel
def _parameter(total: int, count: int) -> int:
    """Bits of a number that are not in unary."""
    k = 0
    while count << k < total:
        k += 1
    return k
