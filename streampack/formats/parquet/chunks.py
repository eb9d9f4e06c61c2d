"""Byte ranges of the columns of a Parquet file, read from its footer, for fetching ahead.

pyarrow has an accessor for this, which ends the process at some damaged footers (see `footer`). So
the footer is read here, by Thrift's compact protocol: structures of numbered fields, of which only
those that lead to a column's range are kept. The ranges decide when bytes are fetched, never which
of them are decoded, so a damaged footer may give no ranges, or wrong ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from streampack.storage.files import StoredFile

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(
    13
)
_DEEPEST = 16  # maximum depth of structures

#: Fields that are kept, by number: True of a value, or of the structures of a list.
_COLUMN_META = {3: True, 7: True, 9: True, 11: True}
_COLUMN = {3: _COLUMN_META}
_ROW_GROUP = {1: _COLUMN, 2: True, 3: True}
_FILE = {4: _ROW_GROUP}


class _Compact:
    """Values of the compact protocol, one after the other.

    Raises (in all methods):
        ValueError, IndexError: the data are damaged.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number has too many bytes")

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        size = self.varint()
        self._skip(size)
        return self._data[self._at - size : self._at]

    def struct(self, wanted: dict[int, Any], depth: int = 0) -> dict[int, Any]:
        """Read a structure; return its wanted fields by their numbers."""
        if depth > _DEEPEST:
            raise ValueError("structures are nested too deep")
        fields: dict[int, Any] = {}
        field = 0
        while True:
            head = self._data[self._at]
            self._at += 1
            kind = head & 15
            if kind == _STOP:
                return fields
            field = field + (head >> 4) if head >> 4 else self.integer()
            value = self._value(kind, wanted.get(field), depth + 1)
            if field in wanted:
                fields[field] = value

    def _value(self, kind: int, wanted: Any, depth: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in (_I16, _I32, _I64):
            return self.integer()
        if kind == _BINARY:
            return self.binary()
        if kind == _STRUCT:
            return self.struct(wanted if isinstance(wanted, dict) else {}, depth)
        if kind in (_LIST, _SET):
            head = self._data[self._at]
            self._at += 1
            size, kind = head >> 4, head & 15
            if size == 15:
                size = self._size()
            if kind in (_TRUE, _FALSE, _BYTE):  # in lists these take a byte each
                return self._skip(size)
            return [self._value(kind, wanted, depth) for _ in range(size)]
        if kind == _MAP:
            size = self._size()
            if size:
                kinds = self._data[self._at]
                self._at += 1
                for _ in range(size):
                    for kind in (kinds >> 4, kinds & 15):
                        self._value(_BYTE if kind in (_TRUE, _FALSE) else kind, None, depth)
            return None
        return self._skip({_BYTE: 1, _DOUBLE: 8}[kind])

    def _size(self) -> int:
        """Read the size of a list or map, of which each item has a byte at least."""
        size = self.varint()
        if size > len(self._data) - self._at:
            raise ValueError("it breaks off")
        return size

    def _skip(self, size: int) -> None:
        self._at += size
        if self._at > len(self._data):
            raise ValueError("it breaks off")


class RowGroup(NamedTuple):
    """A row group's number of rows, and the bytes of all its columns before compression."""

    num_rows: int
    total_byte_size: int


@dataclass(frozen=True, slots=True)
class Chunks:
    """The byte ranges of a file that hold the wanted columns, in the order of the file.

    Attributes:
        starts, ends: first byte of each range, and the byte after it.
        columns: index of its column in the row group; groups: index of the row group.
        row_groups: the file's row groups.
    """

    starts: Sequence[int]
    ends: Sequence[int]
    columns: Sequence[int]
    groups: Sequence[int]
    row_groups: Sequence[RowGroup] = ()

    @classmethod
    def of(cls, footer: bytes, columns: Collection[str], num_bytes: int) -> Chunks:
        """Parse a footer without its length and magic number; a damaged one gives no ranges.

        Args:
            footer: the footer of a file.
            columns: names of the wanted columns.
            num_bytes: size of the file.
        """
        wanted = {name.encode() for name in columns}
        spans: list[tuple[int, int, int, int]] = []
        row_groups: list[RowGroup] = []
        try:
            for group, row_group in enumerate(_Compact(footer).struct(_FILE).get(4, ())):
                row_groups.append(RowGroup(row_group[3], row_group[2]))
                for column, chunk in enumerate(row_group.get(1, ())):
                    meta = chunk.get(3, {})
                    if meta.get(3, [b""])[0] in wanted:
                        start = min(meta[9], meta.get(11) or meta[9])
                        end = start + meta[7]
                        if not 0 <= start <= end <= num_bytes:
                            raise ValueError("a column lies outside of the file")
                        spans.append((start, end, column, group))
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError):
            spans, row_groups = [], []
        spans.sort()
        starts, ends, numbers, groups = zip(*spans, strict=True) if spans else ((), (), (), ())
        return cls(starts, ends, numbers, groups, row_groups)


def read_chunks(file: StoredFile, columns: Collection[str]) -> Chunks:
    """Read the ranges of a file's columns from its footer."""
    footer = footer_bytes(file)
    return Chunks.of(footer, columns, file.num_bytes) if footer else Chunks((), (), (), ())


def footer_bytes(file: StoredFile) -> bytes | None:
    """Return a file's footer without its length and magic number; None if it has none."""
    size = file.num_bytes
    tail = file.read(max(size - 8, 0), size)
    length = int.from_bytes(tail[:4], "little")
    whole = tail[4:] == b"PAR1" and length <= size - 12
    return file.read(size - 8 - length, size - 8) if whole else None


def compact_fields(data: bytes, wanted: dict[int, Any]) -> dict[int, Any]:
    """Read a structure of Thrift's compact protocol; see `_Compact`."""
    return _Compact(data).struct(wanted)


_BUFFER_BYTES = 1 << 20  # bytes of a column that are read at a time, and may follow the last row


def in_order(chunks: Chunks, shares: Mapping[int, float]) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges [start, stop) of columns that are read side by side, in order.

    Args:
        chunks: byte ranges of the file's columns.
        shares: the part of each row group to read from its beginning, 0 to 1; row groups that are
            missing here are not read.
    """
    buffers = [
        (group, at / max(end - start, 1), start + at, min(start + at + _BUFFER_BYTES, end))
        for start, end, group in zip(chunks.starts, chunks.ends, chunks.groups, strict=True)
        for at in range(0, int((end - start) * shares.get(group, -1)) + 1, _BUFFER_BYTES)
    ]
    yield from ((start, stop) for *_, start, stop in sorted(buffers))
