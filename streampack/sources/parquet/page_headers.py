"""Headers of Parquet pages: Thrift's compact protocol, as far as headers use it.

A struct becomes a dict from field number to value; what a field means is in parquet.thrift of
the Parquet format's specification.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DamagedHeaderError", "read_struct"]

_DEEPEST = 8


class DamagedHeaderError(Exception):
    """The bytes are no struct."""


def read_struct(data: memoryview, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """The struct that begins at byte `at`, and the byte behind it.

    Raises:
        DamagedHeaderError: the bytes are no struct, or break off.
    """
    if depth > _DEEPEST:
        raise DamagedHeaderError
    fields: dict[int, Any] = {}
    number = 0
    try:
        while True:
            head = data[at]
            at += 1
            if head == 0:
                return fields, at
            if head >> 4:
                number += head >> 4
            else:
                number, at = _zigzag(data, at)
            fields[number], at = _value(data, at, head & 15, depth)
    except IndexError:
        raise DamagedHeaderError from None


def _value(data: memoryview, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # true and false
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _zigzag(data, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        size, at = _varint(data, at)
        return None, at + size  # statistics, which nobody asks for
    if kind == 12:
        return read_struct(data, at, depth + 1)
    raise DamagedHeaderError  # lists and maps are in no page header


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise DamagedHeaderError


def _zigzag(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at
