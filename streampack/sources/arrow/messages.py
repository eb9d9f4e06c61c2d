"""The record batches of an Arrow file: where each lies and how many rows it has, none decoded.

A file of either form is a stream of messages: the schema, then record batches (and dictionaries),
then an end mark. The random access form has a magic number before it and a footer after it. pyarrow
gives the rows of a batch only with its columns, which may have to be unpacked, so this number is
read from the message.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streampack.reading.records import DamagedFileError

MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Batches:
    """The K record batches of a file.

    Attributes:
        schema: of all.
        rows: K + 1 numbers, rows before each.
        ends: K numbers, the byte after each; begins: those at which they begin.
    """

    schema: pa.Schema
    rows: list[int]
    begins: list[int]
    ends: list[int]

    @classmethod
    def of(cls, file: Any) -> Batches:
        """Those of an open file of pyarrow, mapped into memory.

        Raises:
            DamagedFileError: the file is cut short, or damaged; so do exceptions of Arrow say.
        """
        by_number = file.read_at(len(MAGIC), 0) == MAGIC
        file.seek(8 if by_number else 0)
        reader = pa.ipc.MessageReader.open_stream(file)
        found = cls(pa.ipc.read_schema(reader.read_next_message()), [0], [], [])
        while True:
            begin = file.tell()
            try:
                message = reader.read_next_message()
            except StopIteration:
                break
            if message.type == "record batch":
                found.rows.append(found.rows[-1] + _rows(message))
                found.begins.append(begin)
                found.ends.append(file.tell())
            elif message.type != "dictionary":
                raise DamagedFileError(f'a message of kind "{message.type}" stands for a batch')
        if file.read_at(len(_END), begin) != _END:
            raise DamagedFileError("it is cut short: its end mark is missing")
        if not by_number and begin + len(_END) != file.size():
            raise DamagedFileError(f"its end mark is at byte {begin:,} of {file.size():,}")
        return found

    def row_at(self, byte: int) -> int:
        """The first row that begins at a byte or after it, with all rows of a batch as equals."""
        k = bisect_right(self.ends, byte)
        if k == len(self.ends):
            return self.rows[-1]
        rows = self.rows[k + 1] - self.rows[k]
        inside = max(byte - self.begins[k], 0)
        return self.rows[k] - -inside * rows // (self.ends[k] - self.begins[k])

    def byte_of(self, row: int) -> int:
        """Where a row begins; after the last one, where the batches end."""
        k = bisect_right(self.rows, row) - 1
        if k == len(self.ends):
            return self.ends[-1]
        rows = self.rows[k + 1] - self.rows[k]
        return self.begins[k] + (self.ends[k] - self.begins[k]) * (row - self.rows[k]) // rows


def _rows(message: Any) -> int:
    """The rows of a record batch.

    The metadata is a flatbuffer: a table begins with the way back to the places of its fields.
    """
    data = message.metadata.to_pybytes()
    try:
        at = _field(data, _follow(data, _field(data, _follow(data, 0), 2)), 0)
        rows = int(struct.unpack_from("<q", data, at)[0]) if at else 0
    except struct.error as error:
        raise DamagedFileError(f"a batch cannot be followed ({error})") from error
    if rows < 0:
        raise DamagedFileError(f"a batch has {rows} rows")
    return rows


def _follow(data: bytes, at: int) -> int:
    """The place that an offset at this place leads to."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it has its default."""
    places = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, places)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, places + 4 + 2 * number)
    return table + offset if offset else 0
