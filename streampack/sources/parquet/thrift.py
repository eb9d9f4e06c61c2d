"""Thrift's compact protocol, as kernels that follow a struct in untrusted bytes.

A place is a byte's number; -1 stands for broken data, and every function passes it on.

Source: thrift-compact-protocol.md of apache/thrift.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel

Index: TypeAlias = Any  # compiled, an int and an np.int64 are the same

#: Types, those that hold others last.
_BOOLS, _BYTE, I32, I64, _DOUBLE, _BINARY, LIST, _MAP, STRUCT = 2, 3, 5, 6, 7, 8, 9, 11, 12
_DEEPEST = 64  # structs and lists in one another; those of Parquet are five deep


@kernel
def _varint(data: NDArray[np.uint8], at: Index, end: Index) -> tuple[Index, Index]:
    """An unsigned number of 63 bits, and the place after it, or -1."""
    value = np.int64(0)
    for shift in range(0, 70, 7):
        if at < 0 or at >= end:
            break
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 127) << min(shift, 63)
        if byte < 128:
            return value, np.int64(at)
    return np.int64(0), np.int64(-1)


@kernel
def integer(data: NDArray[np.uint8], at: Index, end: Index, kind: Index) -> tuple[Index, Index]:
    """A signed number, in zigzag order, and the place after it, or -1.

    Of a number that is too large for its type, Thrift takes the low bits.
    """
    value, at = _varint(data, at, end)
    if kind == I32:
        value &= np.int64(0xFFFFFFFF)
    return ((value >> 1) & np.int64(0x7FFFFFFFFFFFFFFF)) ^ -(value & 1), at


@kernel
def next_field(
    data: NDArray[np.uint8], at: Index, end: Index, before: Index
) -> tuple[Index, Index, Index]:
    """Type and number of a struct's next field, after that of number `before`, and its place.

    Type 0 is the end of the struct; -1 says that the data are broken.
    """
    if at < 0 or at >= end:
        return np.int64(-1), np.int64(0), np.int64(-1)
    head = np.int64(data[at])
    number = np.int64(before) + (head >> 4)
    place = np.int64(at) + 1
    if head & 15 and not head >> 4:
        number, place = integer(data, place, end, I64)
        if place < 0:
            return np.int64(-1), np.int64(0), np.int64(-1)
    return head & 15, number, place


@kernel
def list_of(data: NDArray[np.uint8], at: Index, end: Index) -> tuple[Index, Index, Index]:
    """How many elements a list has, their type, and the place of the first, or -1.

    Each takes a byte at least, so a list cannot have more than there are.
    """
    if at < 0 or at >= end:
        return np.int64(0), np.int64(0), np.int64(-1)
    head = np.int64(data[at])
    size = head >> 4
    place = np.int64(at) + 1
    if size == 15:
        size, place = _varint(data, place, end)
    if place < 0 or size < 0 or size > end - place:
        return np.int64(0), np.int64(0), np.int64(-1)
    return size, head & 15, place


@kernel
def _map(data: NDArray[np.uint8], at: Index, end: Index) -> tuple[Index, Index, Index]:
    """How many keys and values a map has, the types of both, and the first one's place, or -1."""
    size, at = _varint(data, at, end)
    if at < 0 or size == 0:
        return np.int64(0), np.int64(0), np.int64(at)
    if at >= end or size < 0 or size > end - at:
        return np.int64(0), np.int64(0), np.int64(-1)
    types = np.int64(data[at])
    return 2 * size, types >> 4 | (types & 15) << 4, np.int64(at + 1)


@kernel
def after(data: NDArray[np.uint8], at: Index, end: Index, kind: Index) -> Index:
    """The place after a value of a type, or -1.

    It keeps its own stack: numba crashes where a kernel that calls itself comes from its cache.
    """
    if kind < LIST:
        return _after_scalar(data, at, end, kind)
    left = np.empty(_DEEPEST, dtype=np.int64)  # elements to come of each open list; -1: a struct
    kinds = np.empty(_DEEPEST, dtype=np.int64)  # type of the next one, and of the one after it
    depth = -1
    while True:
        if kind >= LIST:
            depth += 1
            if depth == _DEEPEST:
                return np.int64(-1)
            left[depth] = -1
            if kind == _MAP:
                left[depth], kinds[depth], at = _map(data, at, end)
            elif kind != STRUCT:
                left[depth], kind, at = list_of(data, at, end)
                kinds[depth] = kind | kind << 4
        elif kind <= _BOOLS and left[depth] >= 0:
            at += 1  # among the fields of a struct, the type says which
        else:
            at = _after_scalar(data, at, end, kind)
        while at >= 0:
            if left[depth] < 0:
                kind, _, at = next_field(data, at, end, 0)
                if kind > 0:
                    break
            elif left[depth] > 0:
                left[depth] -= 1
                kind = kinds[depth] & 15
                kinds[depth] = kinds[depth] >> 4 | kind << 4
                break
            depth -= 1
            if depth < 0:
                return np.int64(at)
        if at < 0:
            return np.int64(-1)


@kernel
def _after_scalar(data: NDArray[np.uint8], at: Index, end: Index, kind: Index) -> Index:
    size: Index = np.int64(0)
    if at < 0:
        return np.int64(-1)
    if kind == _BYTE:
        size = np.int64(1)
    elif kind == _DOUBLE:
        size = np.int64(8)
    elif kind == _BINARY:
        size, at = _varint(data, at, end)
    elif kind > _BOOLS:
        at = _varint(data, at, end)[1]
    return np.int64(at + size) if 0 <= size <= end - at else np.int64(-1)
