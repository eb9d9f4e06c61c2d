"""Where the record batches of an Arrow file lie, and their rows, by the heads of its messages.

A file of either form is a stream of messages: the schema, then record batches (and dictionaries),
then an end mark. The random access form has a magic number before it, and after it a footer with
the place of each batch. The rows of a batch are in the head of its message.

Heads are read once, up to the part that is read and the batch after it: of a stream one after the
other, of the random access form at the places in its footer. Threads that fetch ahead read them
too, so only `Batches.schema` calls pyarrow.
"""

from __future__ import annotations

import os
import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

import pyarrow as pa

from streampack.cached import cached_property
from streampack.keep_last import KeepLast
from streampack.sources.records import DamagedFileError
from streampack.storage.files import LEAST_BYTES, StoredFile
from streampack.storage.plans import FIRST_BLOCKS

_MAGIC = b"ARROW1"
#: Bytes of a message that are read at a time.
HEAD_BYTES = 4096
_LONGEST_START = 68  # bytes up to the end of the first mark
_END = b"\xff\xff\xff\xff\0\0\0\0"
MARK, _SCHEMA, _DICTIONARY, _BATCH = _END[:4], 1, 2, 3
_BLOCK = struct.Struct("<qi4xq")  # offset of a message, bytes of its head and of its body
_FEW_BYTES = 1 << 20  # of larger batches the heads alone are fetched ahead
_CONTRADICTS = "its footer contradicts its batches"


class Batch(NamedTuple):
    """A record batch.

    Attributes:
        begin, end: bytes of its message.
        first, stop: its rows in the file.
        compressed: True if its columns are.
    """

    begin: int
    end: int
    first: int
    stop: int
    compressed: bool

    @property
    def is_shared(self) -> bool:
        """True if parts of it come from the cache."""
        return self.compressed and self.end - self.begin >= LEAST_BYTES


class Batches:
    """The record batches of a file, as far as they are known. Threads may use it at once.

    The weight of a file is its bytes: the first batch begins at 0, others at their message.

    Attributes:
        places: (begin, end) of all batches, by the footer; None for a stream.
        enterable: False after a dictionary in a stream, which can only be read from its beginning.

    Raises (as its methods do):
        DamagedFileError: the file is cut short, or damaged; Arrow's exceptions mean the same.
    """

    def __init__(self, file: StoredFile) -> None:
        start = file.read(0, min(_LONGEST_START, file.num_bytes))
        at = schema_at(start)
        self._begin, self._schema, self.places = 0, b"", None
        if not at or start[at : at + 4] == MARK:  # Polars writes no mark
            message = _Message.of(file, at)
            if message is None or message.kind != _SCHEMA:
                raise DamagedFileError("it has no schema")
            self._begin, self._schema = message.end, message.head
        if at:
            self._schema, self.places = _footer(file, self._begin)
        self.enterable = True
        # Threads find the same batches, so either may be kept.
        self._known: dict[int, Batch] = {}
        self._is_whole = False
        self._walkers: dict[int, int] = {}  # threads that read ahead in a process and its forks

    @classmethod
    def of(cls, file: StoredFile) -> Batches:
        """Return the batches of a file that is opened for its heads; the latest files are kept."""
        file.needed_again = True  # by the parts that have the batches
        return _kept.keep(file.version, lambda: cls(file))

    @cached_property
    def schema(self) -> pa.Schema:
        """Return the schema of all batches."""
        buffer = pa.py_buffer(self._schema)
        return (
            pa.ipc.read_schema(buffer) if self.places is None else pa.ipc.open_file(buffer).schema
        )

    @cached_property
    def has_dictionaries(self) -> bool:
        """Return True if dictionaries may lie between the batches of a stream."""
        return self.places is None and "dictionary<" in str(self.schema.remove_metadata())

    def __getitem__(self, number: int) -> Batch:
        """Return a batch that is known."""
        return self._known[number]

    def batch(self, file: StoredFile, number: int) -> Batch | None:
        """Return a batch; None behind the last one."""
        while (known := len(self._known)) <= number:
            following = None
            if not self._is_whole:
                following = self._following(file, known, self._known.get(known - 1))
            if following is None:
                self._is_whole = True
                return None
            self._known.setdefault(known, following)
        return self._known[number]

    def _following(self, file: StoredFile, number: int, last: Batch | None) -> Batch | None:
        """Read the head of a batch, which follows another one."""
        if self.places is not None:
            if number == len(self.places):
                return None
            begin, end = self.places[number]
            message = _Message.of(file, begin)
            if message is None or (message.kind, message.end) != (_BATCH, end):
                raise DamagedFileError(_CONTRADICTS)
        else:
            begin = last.end if last else self._begin
            while (message := _Message.of(file, begin)) and message.kind == _DICTIONARY:
                self.enterable, begin = False, message.end
            if message is None:
                if begin + len(_END) != file.num_bytes:
                    raise DamagedFileError(
                        f"its end mark is at byte {begin:,} of {file.num_bytes:,}"
                    )
                return None
            if message.kind != _BATCH:
                raise DamagedFileError(f"a message of kind {message.kind} replaces a batch")
        rows, compressed = message.batch()
        first = last.stop if last else 0
        return Batch(begin, message.end, first, first + rows, compressed)

    def place(self, file: StoredFile, at: int) -> tuple[int, int] | None:
        """Return the bytes of the batch at a position of the weight; None behind the last one."""
        number = self._number_at(file, at)
        if self.places is not None:
            return self.places[number] if number < len(self.places) else None
        batch = self.batch(file, number)
        return batch and (batch.begin, batch.end)

    def heads(self, file: StoredFile, until: int) -> Iterator[tuple[int, int]]:
        """Yield the bytes of heads before a position, as they will be read.

        Heads of a stream are expected as if its batches were as large as those before them on
        average. Small batches are read whole.
        """
        if self.places is not None:
            yield from ((at, at + HEAD_BYTES) for at, _ in self.places if at < until)
            return
        guess = 0
        while (last := self.batch(file, max(len(self._known) - 1, 0))) is not None:
            size = (last.end - self._begin) // len(self._known)
            guess = max(guess + size, last.end)
            if guess >= until:
                return
            if size < _FEW_BYTES:
                yield guess, until
                return
            yield guess, guess + HEAD_BYTES

    def walk(self, at: int, open_file: Callable[[], AbstractContextManager[StoredFile]]) -> bool:
        """Read the heads of a stream up to a position; return False if another thread does so."""
        me = threading.get_ident()
        if self._walkers.setdefault(os.getpid(), me) != me:
            return self._reaches(at)
        try:
            while not self._reaches(at):
                with open_file() as file:  # with a plan for these heads
                    file.needed_again = True
                    file.plan(self.heads(file, at))
                    self.batch(file, len(self._known) + FIRST_BLOCKS - 1)
        finally:
            del self._walkers[os.getpid()]
        return True

    def _reaches(self, at: int) -> bool:
        known = len(self._known)
        return self._is_whole or (known > 0 and at < self._known[known - 1].end)

    def has_rows(self, file: StoredFile) -> bool:
        """Return True if a batch has rows."""
        number = 0
        while (batch := self.batch(file, number)) is not None and not batch.stop:
            number += 1
        return batch is not None

    def row(self, file: StoredFile, at: int) -> int:
        """Return the first row that begins at a position of the weight or after it."""
        number = self._number_at(file, at)
        batch = self.batch(file, number)
        if batch is None:
            return self._known[number - 1].stop if number else 0
        return self._row_in(number, batch, at)

    def stop(self, file: StoredFile, number: int, high: int) -> int:
        """Return the row before which a part ends at `high`; or a row behind a batch, if it does.

        Heads are read up to the next batch with rows at most.
        """
        asked, stop = number, 0
        while (batch := self.batch(file, number)) is not None:
            if high <= self._part(number, batch)[1]:
                return self._row_in(number, batch, high)
            if number > asked and batch.stop > stop:
                return batch.stop
            number, stop = number + 1, batch.stop
        return stop

    def reached(self, file: StoredFile, row: int, high: int) -> int:
        """Return the position at which a row begins; `high` for the end of a part up to there."""
        number = self.number_of(row)
        if row == self.stop(file, number, high):
            return high
        batch = self._known[number]
        low, until = self._part(number, batch)
        rows = max(batch.stop - batch.first, 1)
        return low + (until - low) * (row - batch.first) // rows

    def number_of(self, row: int) -> int:
        """Return the number of the first known batch that ends at a row or behind it."""
        return bisect_left(range(len(self._known)), row, key=lambda n: self._known[n].stop)

    def _number_at(self, file: StoredFile, at: int) -> int:
        if self.places is not None:
            if not self.places or at >= self.places[-1][1]:
                return len(self.places)
            return max(bisect_right(self.places, (at, file.num_bytes)) - 1, 0)
        known = range(len(self._known))
        number = max(bisect_right(known, at, key=lambda n: self._known[n].begin) - 1, 0)
        while (batch := self.batch(file, number)) is not None and at >= batch.end:
            following = self.batch(file, number + 1)
            if following is not None and at < following.begin:  # in a dictionary between them
                break
            number += 1
        return number

    def _part(self, number: int, batch: Batch) -> tuple[int, int]:
        """Return where a batch begins and ends on the weight of the file."""
        following = self.places[number + 1 : number + 2] if self.places else []
        if (after := self._known.get(number + 1)) is not None:
            following = [(after.begin, after.end)]
        return batch.begin if number else 0, following[0][0] if following else batch.end

    def _row_in(self, number: int, batch: Batch, at: int) -> int:
        low, high = self._part(number, batch)
        return batch.first - -max(at - low, 0) * (batch.stop - batch.first) // (high - low)


_kept: KeepLast[Hashable, Batches] = KeepLast(32)


def schema_at(start: bytes) -> int:
    """Return the byte at which the schema's message begins, from the first bytes of a file.

    It is 0 in a stream, else 8, and in files of arrow-rs up to 64.
    """
    if not start.startswith(_MAGIC):
        return 0
    return next((at for at in range(8, 64, 8) if any(start[at : at + 8])), 64)


def _footer(file: StoredFile, begin: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Read a file of no batch, which has the same footer, and the bytes of the record batches.

    They and the dictionaries must follow one another from byte `begin`, if it is not 0, up to the
    end mark.
    """
    end = file.num_bytes - 4 - len(_MAGIC)
    tail = file.read(max(end, 0), file.num_bytes)
    at = end - int.from_bytes(tail[:4], "little", signed=True)
    if tail[4:] != _MAGIC or not begin <= at < end:
        raise DamagedFileError("it is cut short: its footer is missing")
    footer = file.read(at, end)
    try:
        table = _follow(footer, 0)
        dictionaries, batches = (_blocks(footer, table, field) for field in (2, 3))
    except struct.error as error:
        raise DamagedFileError(f"its footer cannot be followed ({error})") from error
    for start, stop in sorted([*dictionaries, *batches]):
        if start != (begin or start) or stop <= start:
            raise DamagedFileError(_CONTRADICTS)
        begin = stop
    if not begin:  # of no batch, and of a schema without a mark
        begin = at - len(_END)
    if batches != sorted(batches) or file.read(begin, begin + len(_END)) != _END:
        raise DamagedFileError(_CONTRADICTS)
    return _MAGIC + bytes(2) + footer + tail, batches


def _blocks(footer: bytes, table: int, field: int) -> list[tuple[int, int]]:
    """Return the bytes of the messages that a field of a footer lists."""
    at = _field(footer, table, field)
    if not at:
        return []
    at = _follow(footer, at)
    (count,) = struct.unpack_from("<I", footer, at)
    blocks = footer[at + 4 :][: count * _BLOCK.size]
    if len(blocks) < count * _BLOCK.size:
        raise DamagedFileError("its footer is cut short")
    return [(start, start + head + body) for start, head, body in _BLOCK.iter_unpack(blocks)]


class _Message(NamedTuple):
    """The head of a message: a mark, its size, and a flatbuffer with the size of the body."""

    head: bytes
    end: int

    @classmethod
    def of(cls, file: StoredFile, at: int) -> _Message | None:
        """Read the head at a byte; return None at the end mark."""
        data = file.array(at, at + HEAD_BYTES).tobytes()
        if data[:8] == _END:
            return None
        size = 8 + struct.unpack_from("<i", data, 4)[0] if len(data) >= 8 else -1
        if data[:4] != MARK or size < 8 or at + size > file.num_bytes:
            raise DamagedFileError("it is cut short: its end mark is missing")
        message = cls(data[:size] if size <= len(data) else file.read(at, at + size), 0)
        body = message._number("<q", 3)
        end = at + size + body
        if body < 0 or end > file.num_bytes:
            raise DamagedFileError("it is cut short: its end mark is missing")
        return cls(message.head, end)

    @property
    def kind(self) -> int:
        """The kind of message: `_SCHEMA`, `_DICTIONARY`, `_BATCH` or another one."""
        return self._number("<B", 1)

    def batch(self) -> tuple[int, bool]:
        """Return the rows of a record batch, and True if its columns are compressed."""
        try:
            table = _follow(self.head, _field(self.head, _follow(self.head, 8), 2))
            at = _field(self.head, table, 0)
            rows = int(struct.unpack_from("<q", self.head, at)[0]) if at else 0
            compressed = _field(self.head, table, 3) > 0
        except struct.error as error:
            raise DamagedFileError(f"a batch cannot be followed ({error})") from error
        if rows < 0:
            raise DamagedFileError(f"a batch has {rows} rows")
        return rows, compressed

    def _number(self, form: str, field: int) -> int:
        try:
            at = _field(self.head, _follow(self.head, 8), field)
            return int(struct.unpack_from(form, self.head, at)[0]) if at else 0
        except struct.error as error:
            raise DamagedFileError(f"a message cannot be followed ({error})") from error


def _follow(data: bytes, at: int) -> int:
    """Return the position that an offset of a flatbuffer stored at `at` leads to."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a table; 0 if the field has its default.

    A table begins with an offset back to the list of its fields.
    """
    positions = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, positions)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, positions + 4 + 2 * number)
    return table + offset if offset else 0
