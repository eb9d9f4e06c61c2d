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
from binascii import b2a_base64
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel

__all__ = [
    "LARGEST",
    "append_column",
    "append_numbers",
    "decode_column",
    "encode_column",
    "finish_numbers",
    "written",
]

#: What the values of one column may add up to: JSON numbers are exact up to here.
LARGEST = 1 << 53

_LONG = 24  # ones of a unary part that say that the number is written out
_WIDE = 54  # bits of a number that is written out
_MEMORY = 32  # numbers over which the mean is taken


def encode_column(values: NDArray[np.int64]) -> str:
    """Values (N,) int64, none negative, their sum at most `LARGEST`, as text."""
    return written(lambda out, ends: _encode_one(values, out, ends), 1)[0]


def written(
    encode: Callable[[NDArray[np.uint64], NDArray[np.int64]], bool], columns: int
) -> list[str]:
    """The texts of columns that a kernel writes, for kernels that encode several in one call.

    Args:
        encode: writes with `append_column` into words `out`, and where each column ends (in words
            and bytes, see there) into `ends` (columns, 2); False if there was no room.
        columns: how many.
    """
    size, ends = 1 << 11, np.empty((columns, 2), dtype=np.int64)
    while True:
        out = np.empty(size, dtype=np.uint64)
        if encode(out, ends):
            break
        size *= 8
    used = int(ends[-1, 0])
    data = out[:used].astype("<u8", copy=False).tobytes()  # the same bytes on any machine
    texts, first = [], 0
    for words, num_bytes in ends.tolist():
        texts.append(b2a_base64(data[8 * first : 8 * first + num_bytes], newline=False).decode())
        first = words
    return texts


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
def _encode_one(
    values: NDArray[np.int64], out: NDArray[np.uint64], ends: NDArray[np.int64]
) -> bool:
    return append_column(values, 0, out, ends, 0) >= 0


@kernel
def append_column(
    values: NDArray[np.int64],
    first: int,
    out: NDArray[np.uint64],
    ends: NDArray[np.int64],
    column: int,
) -> int:
    """Write a column from word `first` of `out` on, and its end to ``ends[column]``.

    Returns:
        The first word behind it, or -1 if there is no room; `ends` gets that and its bytes.
    """
    return append_numbers(_numbers(values), first, out, ends, column)


@kernel
def append_numbers(
    numbers: NDArray[np.int64],
    first: int,
    out: NDArray[np.uint64],
    ends: NDArray[np.int64],
    column: int,
) -> int:
    """`append_column` of a column whose `finish_numbers` are known."""
    if first < 0:
        return -1
    # One loop without calls that pass arrays: these cost more than the work itself.
    total0, total1, count0, count1 = 1, 1, 1, 1
    k0, k1 = 0, 0
    at, word, filled = first, np.uint64(0), 0
    for i in range(len(numbers)):
        number = numbers[i]
        if i & 1:  # zeros
            k = k1 = _near(k1, total1, count1)
            total1 += number
            count1 += 1
            if count1 >= _MEMORY:
                total1 >>= 1
                count1 >>= 1
        else:  # a value, or the divisor
            k = k0 = _near(k0, total0, count0)
            total0 += number
            count0 += 1
            if count0 >= _MEMORY:
                total0 >>= 1
                count0 >>= 1
        high = min(number >> k, _LONG)
        part, width = (1 << high) - 1, high + (high < _LONG)
        low, rest = number, _WIDE
        if high < _LONG:
            low, rest = number & ((1 << k) - 1), k
        if at + 2 >= len(out):
            return -1
        for _ in range(2):  # what is unary, and the rest
            word |= np.uint64(part) << np.uint64(filled)
            filled += width
            if filled >= 64:
                out[at] = word
                at += 1
                filled -= 64
                word = np.uint64(part) >> np.uint64(width - filled) if filled else np.uint64(0)
            part, width = low, rest
    num_bytes = 8 * (at - first) + (filled + 7) // 8
    if filled:
        out[at] = word
        at += 1
    ends[column, 0], ends[column, 1] = at, num_bytes
    return at


@kernel
def _numbers(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of step 1, in turn; none for a column of zeros."""
    count = 0
    for i in range(len(values)):
        count += values[i] != 0
    numbers = np.empty(2 * count + 2 if count else 0, dtype=np.int64)
    k, last = 1, -1
    if count:
        for i in range(len(values)):
            if values[i] != 0:
                numbers[k] = i - last - 1
                numbers[k + 1] = values[i]
                k += 2
                last = i
    return finish_numbers(numbers, k, last, len(values))


@kernel
def finish_numbers(
    numbers: NDArray[np.int64], stop: int, last: int, count: int
) -> NDArray[np.int64]:
    """The numbers of step 1, in place, from places and values as they are.

    Args:
        numbers: from 1 to `stop`, in turn, the zeros before a value and the value; and room for one
            more.
        stop: 1 if there is no value; last: index of the last one, of `count`.
    """
    if stop == 1:
        return numbers[:0]
    divisor = 0
    for k in range(2, stop, 2):
        value = numbers[k]
        while value != 0:
            divisor, value = value, divisor % value
        if divisor == 1:
            break
    numbers[0] = divisor - 1
    for k in range(2, stop, 2):
        # Divisions cost more than all the rest, and most columns have 1.
        numbers[k] = (numbers[k] if divisor == 1 else numbers[k] // divisor) - 1
    numbers[stop] = count - last - 1
    return numbers[: stop + 1]


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
def _near(k: int, total: int, count: int) -> int:
    """`_parameter`, from its value before."""
    while count << k < total:
        k += 1
    while k > 0 and count << (k - 1) >= total:
        k -= 1
    return k


@kernel
def _parameter(total: int, count: int) -> int:
    """Bits of a number that are not in unary."""
    k = 0
    while count << k < total:
        k += 1
    return k
