"""What a Parquet footer says of the chunks of some columns, walked by kernels.

pyarrow gives the same, and ends the process where a footer that it took contradicts itself (sizes
of histograms, physical types, widths of statistics): errors of its accessors have nowhere to go.
Here nothing is believed but that bytes are there. Fields and types are those of parquet.thrift in
the Parquet format's specification, in Thrift's compact protocol.

Cost: one pass over the footer, about a nanosecond per byte.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack._jit import kernel

__all__ = ["Chunk", "DamagedFooterError", "column_chunks"]

_LIST, _SET, _STRUCT = 9, 10, 12  # types of Thrift's compact protocol
_DEEPEST = 16
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_TYPES = {1: "INT32", 2: "INT64"}
#: Fields of a column's metadata that are numbers, in the order of `Chunk`.
_NUMBERS = np.array([1, 4, 5, 6, 7, 9, 11], dtype=np.int64)
_STATISTICS, _LARGEST, _SMALLEST = 12, 5, 6


Index: TypeAlias = Any  # compiled, an int and an np.int64 are the same


class DamagedFooterError(Exception):
    """The bytes are no footer, or one of other columns than its schema has."""


class Chunk(NamedTuple):
    """A column's part of a row group; -1 is what is not said.

    Attributes:
        physical_type: "INT32", "INT64", or "" for others.
        codec: its compression; "" if unknown.
        num_values: ids, and one for every empty list and every null.
        uncompressed_bytes, compressed_bytes: of its pages.
        data_page_offset, dictionary_page_offset: where they begin in the file.
        smallest, largest: as its statistics have them, plainly encoded.
    """

    physical_type: str
    codec: str
    num_values: int
    uncompressed_bytes: int
    compressed_bytes: int
    data_page_offset: int
    dictionary_page_offset: int
    smallest: bytes | None
    largest: bytes | None


def column_chunks(
    metadata: pq.FileMetaData, footer: NDArray[np.uint8], columns: Collection[str]
) -> list[list[Chunk]]:
    """The chunks of some columns, in each row group.

    Args:
        metadata: what pyarrow makes of the footer.
        footer: (B,) its bytes, without its length.
        columns: names of columns; a nested one has a chunk per leaf.

    Raises:
        DamagedFooterError: the bytes make no sense.
    """
    schema = metadata.schema
    names = [schema.column(i).path.split(".")[0] for i in range(metadata.num_columns)]
    wanted = np.array([name in columns for name in names], dtype=np.bool_)
    shape = (metadata.num_row_groups, int(wanted.sum()))
    numbers = np.full((*shape, len(_NUMBERS)), -1, dtype=np.int64)
    bounds = np.full((*shape, 4), -1, dtype=np.int64)
    if _walk(footer, wanted, _NUMBERS, numbers, bounds) < 0:
        raise DamagedFooterError("its row groups cannot be made out")
    return [
        [_chunk(footer, *found) for found in zip(*group, strict=True)]
        for group in zip(numbers.tolist(), bounds.tolist(), strict=True)
    ]


def _chunk(footer: NDArray[np.uint8], numbers: list[int], bounds: list[int]) -> Chunk:
    kind, codec, values, uncompressed, compressed, data_page, dictionary_page = numbers
    high, high_size, low, low_size = bounds
    return Chunk(
        _TYPES.get(kind, ""),
        _CODECS[codec] if 0 <= codec < len(_CODECS) else "",
        values,
        uncompressed,
        compressed,
        data_page,
        dictionary_page,
        _bytes(footer, low, low_size),
        _bytes(footer, high, high_size),
    )


def _bytes(footer: NDArray[np.uint8], at: int, size: int) -> bytes | None:
    return footer[at : at + size].tobytes() if at >= 0 else None


@kernel
def _walk(
    data: NDArray[np.uint8],
    wanted: NDArray[np.bool_],
    which: NDArray[np.int64],
    numbers: NDArray[np.int64],
    bounds: NDArray[np.int64],
) -> Index:
    """Fill `numbers` and `bounds` (place and size of the largest, the smallest); 0, or -1."""
    number, at = np.int64(0), np.int64(0)
    while True:
        kind, number, at = _field(data, number, at)
        if kind <= 0:
            return kind  # the end of it
        if number != 4 or kind != _LIST:  # the row groups
            at = _skip(data, at, kind)
            if at < 0:
                return -1
            continue
        kind, count, at = _list(data, at)
        if at < 0 or kind != _STRUCT or count != len(numbers):
            return -1
        for group in range(count):
            at = _group(data, at, wanted, which, numbers[group], bounds[group])
            if at < 0:
                return -1


@kernel
def _group(
    data: NDArray[np.uint8],
    at: Index,
    wanted: NDArray[np.bool_],
    which: NDArray[np.int64],
    numbers: NDArray[np.int64],
    bounds: NDArray[np.int64],
) -> Index:
    """A row group; the byte behind it, or -1."""
    number = np.int64(0)
    while True:
        kind, number, at = _field(data, number, at)
        if kind <= 0:
            return at if kind == 0 else -1
        if number != 1 or kind != _LIST:  # its columns
            at = _skip(data, at, kind)
            if at < 0:
                return -1
            continue
        kind, count, at = _list(data, at)
        if at < 0 or kind != _STRUCT or count != len(wanted):
            return -1
        place = 0
        for column in range(count):
            if wanted[column]:
                at = _column(data, at, which, numbers[place], bounds[place])
                place += 1
            else:
                at = _skip(data, at, _STRUCT)
            if at < 0:
                return -1


@kernel
def _column(
    data: NDArray[np.uint8],
    at: Index,
    which: NDArray[np.int64],
    numbers: NDArray[np.int64],
    bounds: NDArray[np.int64],
) -> Index:
    """A column chunk; the byte behind it, or -1."""
    number = np.int64(0)
    while True:
        kind, number, at = _field(data, number, at)
        if kind <= 0:
            return at if kind == 0 else -1
        if number == 3 and kind == _STRUCT:
            at = _metadata(data, at, which, numbers, bounds)
        else:
            at = _skip(data, at, kind)
        if at < 0:
            return -1


@kernel
def _metadata(
    data: NDArray[np.uint8],
    at: Index,
    which: NDArray[np.int64],
    numbers: NDArray[np.int64],
    bounds: NDArray[np.int64],
) -> Index:
    """A column's metadata; the byte behind it, or -1."""
    number = np.int64(0)
    while True:
        kind, number, at = _field(data, number, at)
        if kind <= 0:
            return at if kind == 0 else -1
        if number == _STATISTICS and kind == _STRUCT:
            at = _statistics(data, at, bounds)
        else:
            if kind == 5 or kind == 6:
                value, behind = _zigzag(data, at)
                for i in range(len(which)):
                    if which[i] == number and behind >= 0:
                        numbers[i] = value
            at = _skip(data, at, kind)
        if at < 0:
            return -1


@kernel
def _statistics(data: NDArray[np.uint8], at: Index, bounds: NDArray[np.int64]) -> Index:
    """A column's statistics; the byte behind them, or -1."""
    number = np.int64(0)
    while True:
        kind, number, at = _field(data, number, at)
        if kind <= 0:
            return at if kind == 0 else -1
        if kind == 8 and _LARGEST <= number <= _SMALLEST:
            size, begin = _varint(data, at)
            if begin >= 0:
                bounds[2 * (number - _LARGEST)] = begin
                bounds[2 * (number - _LARGEST) + 1] = size
        at = _skip(data, at, kind)
        if at < 0:
            return -1


# ------------------------------------------------------------------ Thrift's compact protocol


@kernel
def _varint(data: NDArray[np.uint8], at: Index) -> tuple[Index, Index]:
    """An unsigned number, and the byte behind it or -1."""
    value = np.uint64(0)
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(127)) << np.uint64(shift)
        if byte < 128:
            return np.int64(value), at
    return np.int64(0), np.int64(-1)


@kernel
def _zigzag(data: NDArray[np.uint8], at: Index) -> tuple[Index, Index]:
    """A signed number, and the byte behind it or -1."""
    value, at = _varint(data, at)
    return np.int64(np.uint64(value) >> np.uint64(1)) ^ -(value & 1), at


@kernel
def _field(data: NDArray[np.uint8], number: Index, at: Index) -> tuple[Index, Index, Index]:
    """The head of the field behind field `number`: its type, its number, and the byte behind.

    Type 0 is the end of the struct, -1 is damage.
    """
    if at >= len(data):
        return np.int64(-1), number, at
    head = np.int64(data[at])
    at += 1
    kind, step = head & 15, head >> 4
    if kind == 0:
        return np.int64(0 if head == 0 else -1), number, at
    if step:
        return kind, number + step, at
    number, at = _zigzag(data, at)
    return (kind if at >= 0 else np.int64(-1)), number, at


@kernel
def _list(data: NDArray[np.uint8], at: Index) -> tuple[Index, Index, Index]:
    """The head of a list: type and number of its elements, and the byte behind it or -1."""
    if at >= len(data):
        return np.int64(0), np.int64(0), np.int64(-1)
    head = np.int64(data[at])
    at += 1
    kind, count = head & 15, head >> 4
    if count == 15:
        count, at = _varint(data, at)
    if at < 0 or not 0 <= count <= len(data) - at:  # none takes less than a byte
        return np.int64(0), np.int64(0), np.int64(-1)
    return kind, count, at


@kernel
def _skip(data: NDArray[np.uint8], at: Index, kind: Index) -> Index:
    """The byte behind a value of this type inside a struct, or -1.

    What is open is kept in a stack: a struct as -1, a list as the number of elements still to come.
    """
    left = np.empty(_DEEPEST, dtype=np.int64)
    element = np.empty(_DEEPEST, dtype=np.int64)
    depth = 0
    if kind == 1 or kind == 2:  # the type is the value
        return at
    while True:
        # A value of type `kind` lies at `at`.
        if kind == 3 or kind == 1 or kind == 2:
            at += 1
        elif kind == 4 or kind == 5 or kind == 6:
            _, at = _varint(data, at)
        elif kind == 7:
            at += 8
        elif kind == 8:
            size, at = _varint(data, at)
            if at < 0 or not 0 <= size <= len(data) - at:
                return -1
            at += size
        elif kind == _LIST or kind == _SET or kind == _STRUCT:  # noqa: SIM109
            if depth == _DEEPEST:
                return -1
            left[depth] = -1
            if kind != _STRUCT:
                element[depth], left[depth], at = _list(data, at)
            depth += 1
        else:  # a map, which no footer has
            return -1
        if at < 0 or at > len(data):
            return -1
        # Close what has ended; find the next value.
        while True:
            if depth == 0:
                return at
            if left[depth - 1] > 0:
                left[depth - 1] -= 1
                kind = element[depth - 1]
                break
            if left[depth - 1] < 0:
                kind, _, at = _field(data, np.int64(0), at)
                if kind < 0:
                    return -1
                if kind == 1 or kind == 2:
                    continue
                if kind > 0:
                    break
            depth -= 1
