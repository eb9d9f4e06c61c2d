"""Parquet's hybrid of runs and packed bits, decoded by kernels: levels of lists, and dictionaries.

A run is a number of equal values; or groups of eight values of `width` bits each. No kernel reads
outside of what it is given; bytes that make no sense are answered with -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from streampack._jit import kernel

__all__ = ["look_up", "row_starts", "without_value"]


@intrinsic  # type: ignore[untyped-decorator]
def _word_at(typingctx: Any, data: Any, at: Any) -> Any:
    """The eight bytes of `data` (uint8) from `at` on as one uint64, wherever they lie."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        place = builder.gep(array.data, [args[1]])
        word = builder.bitcast(place, ir.IntType(64).as_pointer())
        return builder.load(word, align=1)

    return types.uint64(data, types.int64), codegen


@kernel
def _run(data: NDArray[np.uint8], at: int) -> tuple[int, int]:
    """The head of a run, and the byte behind it; -1 for none."""
    head = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            return -1, at
        byte = int(data[at])
        at += 1
        head |= (byte & 127) << shift
        if byte < 128:
            return head, at
    return -1, at


@kernel
def row_starts(data: NDArray[np.uint8], count: int, out: NDArray[np.int64]) -> int:
    """How many of `count` repetition levels, of one bit, are 0; as many as fit go to `out`."""
    at = i = found = 0
    while i < count:
        head, at = _run(data, at)
        if head < 0:
            return -1
        if head & 1:
            groups = head >> 1
            if groups > len(data) - at:
                return -1
            for byte in data[at : at + groups]:
                if byte != 255:
                    for bit in range(min(8, count - i)):
                        if not (byte >> bit) & 1:
                            if found < len(out):
                                out[found] = i + bit
                            found += 1
                i += 8
                if i >= count:
                    break
            at += groups
        else:
            if at >= len(data):
                return -1
            run = min(head >> 1, count - i)
            if data[at] == 0:
                for k in range(min(run, len(out) - found)):
                    out[found + k] = i + k
                found += run
            at += 1
            i += run
    return found


@kernel
def without_value(
    data: NDArray[np.uint8], count: int, width: int, full: int, empty: int, out: NDArray[np.int64]
) -> int:
    """How many of `count` definition levels are `empty`; as many as fit go to `out`.

    -1 if there is one that is neither `empty` nor `full`: a null. `width` is at most 8 bits.
    """
    at = i = found = 0
    while i < count:
        head, at = _run(data, at)
        if head < 0:
            return -1
        packed = head & 1
        run = min((head >> 1) * (8 if packed else 1), count - i)
        size = (head >> 1) * width if packed else 1
        if size > len(data) - at:
            return -1
        if not packed and data[at] == empty:  # however long, it costs what fits
            for k in range(min(run, len(out) - found)):
                out[found + k] = i + k
            found += run
        elif not packed and data[at] != full:
            return -1
        elif packed:
            for k in range(run):
                first = k * width
                level = int(data[at + (first >> 3)]) >> (first & 7)
                if (first & 7) + width > 8:
                    level |= int(data[at + (first >> 3) + 1]) << (8 - (first & 7))
                level &= (1 << width) - 1
                if level == empty:
                    if found < len(out):
                        out[found] = i + k
                    found += 1
                elif level != full:
                    return -1
        at += size
        i += run
    return found


@kernel
def look_up(
    data: NDArray[np.uint8], width: int, dictionary: NDArray[Any], out: NDArray[Any]
) -> int:
    """Fill `out` with the entries of `dictionary` that indices of `width` bits name; 0 or -1."""
    at = i = 0
    entries = len(dictionary)
    mask = (1 << width) - 1
    while i < len(out):
        head, at = _run(data, at)
        if head < 0:
            return -1
        if head & 1:
            size = (head >> 1) * width
            if size > len(data) - at:
                return -1
            run = min((head >> 1) * 8, len(out) - i)
            # The last of them may lie less than a word from the end.
            whole = min(run, max(((len(data) - at - 8) * 8) // max(width, 1), 0))
            target = out[i : i + run]
            wrong = 0
            for k in range(whole):
                first = k * width
                word = int(_word_at(data, at + (first >> 3)) >> np.uint64(first & 7))  # type: ignore[call-arg, operator]
                index = word & mask
                wrong |= index >= entries
                target[k] = dictionary[index if index < entries else 0]
            for k in range(whole, run):
                index = 0
                for bit in range(k * width, k * width + width):
                    index |= ((int(data[at + (bit >> 3)]) >> (bit & 7)) & 1) << (bit - k * width)
                wrong |= index >= entries
                target[k] = dictionary[index if index < entries else 0]
            if wrong:
                return -1
            at += size
        else:
            size = (width + 7) >> 3
            if size > len(data) - at:
                return -1
            index = 0
            for k in range(size):
                index |= int(data[at + k]) << (8 * k)
            run = min(head >> 1, len(out) - i)
            if index >= entries:
                return -1
            out[i : i + run] = dictionary[index]
            at += size
        i += run
    return 0
