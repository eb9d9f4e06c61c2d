"""Arrow files as a source, and the byte ranges of their record batches.

A file of either form is a stream of messages: the schema, then record batches (and dictionaries),
then an end mark. The random access form has a magic number before it and a footer after it. The
rows of a batch are in the head of its message, so a file is cut without reading its columns: of a
remote file, the heads up to a part and the record batches of the part are fetched.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from streampack.errors import ConfigError
from streampack.files.file_source import HEAD_BYTES
from streampack.formats.rows.columns import Rows, is_null
from streampack.formats.rows.offsets import Offsets
from streampack.formats.rows.schemas import DAMAGE
from streampack.formats.rows.source import OpenRows, RowFiles
from streampack.keep_last import KeepLast
from streampack.sources.formats import FORMATS
from streampack.sources.manifest import Manifest
from streampack.sources.records import DamagedFileError
from streampack.storage.decoded import shared_batches
from streampack.storage.file_info import FileInfo, Range, shown
from streampack.storage.files import LEAST_BYTES, StoredFile
from streampack.storage.listing import has_ending
from streampack.storage.threads import in_threads

MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\0\0\0\0"
_MARK, _SCHEMA, _DICTIONARY, _BATCH = _END[:4], 1, 2, 3
_HEAD_BYTES = 4096  # bytes of a message read at a time
_SLICE_BYTES = 256 << 10  # bytes per slice of a compressed batch in the cache
# A file is read whole if its first messages have fewer bytes on average; else only heads are,
# fetched ahead where batches as large as the first one would begin.
_FEW, _FEW_BYTES = 4, 1 << 20


@dataclass(frozen=True, slots=True)
class Batches:
    """The K record batches of a file.

    Attributes:
        schema: schema of all batches.
        by_number: True for the random access form.
        enterable: True if a batch can be read without the batches before it.
        rows: K + 1 numbers, rows before each batch.
        begins: K numbers, the byte at which each batch begins.
        ends: K numbers, the byte after each batch.
        compressed: K booleans, True for a batch with compressed columns.
    """

    schema: pa.Schema
    by_number: bool
    enterable: bool
    rows: list[int]
    begins: list[int]
    ends: list[int]
    compressed: list[bool]

    @classmethod
    def of(cls, file: StoredFile) -> Batches:
        """Read the heads of a file's messages.

        Raises:
            DamagedFileError: the file is cut short, or damaged; Arrow's exceptions mean the same.
        """
        by_number = file.read(0, len(MAGIC)) == MAGIC
        schema, enterable = None, True
        rows, begins, ends, compressed = [0], list[int](), list[int](), list[bool]()
        for at, message in _messages(file, 8 if by_number else 0):
            if message is None:
                break
            if (schema is None) != (message.kind == _SCHEMA):
                raise DamagedFileError("it has no schema" if schema is None else "it has several")
            if schema is None:
                schema = pa.ipc.read_schema(pa.py_buffer(message.head))
            elif message.kind == _BATCH:
                count, is_compressed = message.batch()
                rows.append(rows[-1] + count)
                compressed.append(is_compressed)
                begins.append(at)
                ends.append(message.end)
            elif message.kind == _DICTIONARY:
                enterable = by_number
            else:
                raise DamagedFileError(f"a message of kind {message.kind} replaces a batch")
        if schema is None:
            raise DamagedFileError("it has no schema")
        if not by_number and at + len(_END) != file.num_bytes:
            raise DamagedFileError(f"its end mark is at byte {at:,} of {file.num_bytes:,}")
        return cls(schema, by_number, enterable, rows, begins, ends, compressed)

    def is_shared(self, number: int) -> bool:
        """Return True if parts of a batch come from the cache."""
        return self.compressed[number] and self.ends[number] - self.begins[number] >= LEAST_BYTES

    @property
    def positions(self) -> Offsets:
        """The batches' positions on the weight of the file, from its first byte on."""
        bounds = np.array([0, *self.begins[1:], *self.ends[-1:]], dtype=np.int64)
        return Offsets(np.array(self.rows, dtype=np.int64), bounds, np.diff(bounds))


def _messages(file: StoredFile, at: int) -> Iterator[tuple[int, _Message | None]]:
    """Yield the messages of a file from byte `at` on with their bytes; None is the end mark."""
    begin, last, count = at, at, 0
    message: _Message | None = None
    while message is not None or not count:
        if count == _FEW and at - begin < _FEW * _FEW_BYTES:
            file.plan([(at, file.num_bytes)])
        elif count == 2 and at - last >= _FEW_BYTES:  # other batches are nearly as large
            heads = range(at, file.num_bytes, at - last)
            file.plan([(head, min(head + _HEAD_BYTES, file.num_bytes)) for head in heads])
        message, last = _Message.of(file, at), at
        yield at, message
        at, count = at if message is None else message.end, count + 1


@dataclass(frozen=True, slots=True)
class _Message:
    """The head of a message: a mark, its size, and a flatbuffer with the size of the body.

    A table of a flatbuffer begins with an offset back to the list of its fields.
    """

    head: bytes
    end: int

    @classmethod
    def of(cls, file: StoredFile, at: int) -> _Message | None:
        """Read the head at a byte; return None at the end mark."""
        data = file.array(at, at + _HEAD_BYTES).tobytes()
        if data[:8] == _END:
            return None
        size = 8 + struct.unpack_from("<i", data, 4)[0] if len(data) >= 8 else -1
        if data[:4] != _MARK or size < 8 or at + size > file.num_bytes:
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
            table = self._follow(self._field(self._follow(8), 2))
            at = self._field(table, 0)
            rows = int(struct.unpack_from("<q", self.head, at)[0]) if at else 0
            compressed = self._field(table, 3) > 0
        except struct.error as error:
            raise DamagedFileError(f"a batch cannot be followed ({error})") from error
        if rows < 0:
            raise DamagedFileError(f"a batch has {rows} rows")
        return rows, compressed

    def _number(self, form: str, field: int) -> int:
        try:
            at = self._field(self._follow(8), field)
            return int(struct.unpack_from(form, self.head, at)[0]) if at else 0
        except struct.error as error:
            raise DamagedFileError(f"a message cannot be followed ({error})") from error

    def _follow(self, at: int) -> int:
        """Return the position that an offset stored at `at` leads to."""
        return at + int(struct.unpack_from("<I", self.head, at)[0])

    def _field(self, table: int, number: int) -> int:
        """Return the position of a field of a table; 0 if the field has its default."""
        positions = table - struct.unpack_from("<i", self.head, table)[0]
        (size,) = struct.unpack_from("<H", self.head, positions)
        if 4 + 2 * number >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self.head, positions + 4 + 2 * number)
        return table + offset if offset else 0


_HEADS = (64 << 10, 16 << 20)  # bytes of a file's beginning that are searched for its schema
_SPLITS = "/dataset_dict.json"
_batches: KeepLast[Hashable, Batches] = KeepLast(8)


class Arrow(RowFiles):
    """Documents in a column of Arrow files: IPC files and streams, Feather (version 2), and the
    folders that `datasets.Dataset.save_to_disk` writes.

    Files are cut at any row, by their bytes, among any number of lanes. Local files are mapped into
    memory. Columns are read as they lie, without an object per row of token ids. Compressed batches
    are unpacked one at a time; one that several parts share, into the cache, once per host.
    Arguments and columns are as for `Parquet`.

    Raises:
        ConfigError: the arguments exclude each other, or a folder has several splits.
    """

    endings = FORMATS["Arrow"].endings

    def ranges(self, shard: int, low: int, high: int) -> Iterator[Range]:
        """Yield the heads of batches, as they are read, and then the batches of the part.

        The random access form gives the bytes of some columns alone; then only heads are yielded.
        """
        listed = self._listed_shard(shard)
        yield Range(listed, 0, HEAD_BYTES)
        with self.storage.open(listed) as file:
            by_number = file.read(0, len(MAGIC)) == MAGIC
            if by_number and not self.manifest.details["all_columns"]:
                return
            bounds = [at for at, _ in _messages(file, 8 if by_number else 0) if at < high]
        first = max(bisect_right(bounds, low) - 1, 0)
        yield Range(listed, bounds[first], high)

    def list_shards(self) -> Manifest:
        """List the files; read the schemas of a sample."""
        infos = self.storage.list(self.paths, endings=(*self.endings, _SPLITS))
        for info in infos:
            if has_ending(info.path, (_SPLITS,)):
                folder = info.path.rpartition("/")[0]
                raise ConfigError(
                    f"{shown(folder)} holds the splits of a dataset.",
                    f'Pass its folder, for example "{shown(folder)}/train".',
                    path=shown(folder),
                )
        seen = self._sampled(infos)
        schemas = {
            i.path: s for i, s in zip(seen, in_threads(self._schema, seen), strict=True) if s
        }
        if not schemas:
            raise ConfigError(
                f"{shown(seen[0].path)} is not an Arrow file (IPC, or Feather version 2).",
                "Check the path, and that the files are complete.",
                path=shown(seen[0].path),
            )
        narrow = self._read_schemas(schemas)
        details = {
            "dtype": self._dtype_name(narrow),
            "documents": None,
            "fields": self.fields,
            "all_columns": all(
                len(self._columns(schema)) == len(schema) for schema in schemas.values()
            ),
            "item_bytes": max(map(self._item_bytes, schemas.values())),
        }
        sizes = np.array([info.num_bytes for info in infos], dtype=np.int64)
        return Manifest.of_files(infos, sizes, details)

    def _item_bytes(self, schema: pa.Schema) -> int:
        """Return the bytes per token."""
        if not self.fields.tokenized or self.fields.records is not None:
            return 4
        kind = schema.field(self.column).type
        size = 1 if is_null(kind) or is_null(kind.value_type) else kind.value_type.bit_width // 8
        return int(size) + self.field_types.shaped_bytes

    def estimate_tokens(self) -> int:
        """Estimate the number of tokens: all bytes are ids, or four of them a token of text."""
        return int(self.manifest.num_bytes.sum()) // int(self.manifest.details["item_bytes"])

    @contextmanager
    def open_rows(self, file: StoredFile, shard: int) -> Iterator[OpenRows]:
        batches = _batches.keep(file.version, lambda: Batches.of(file))
        yield OpenRows(batches.schema, batches.positions, partial(self._decoded, file, batches))

    def _schema(self, info: FileInfo) -> pa.Schema | None:
        """Return the schema of a file; None if it cannot be read."""
        for size in _HEADS:
            head = self.storage.read_range(info, 0, min(size, info.num_bytes))
            try:
                begin = 8 if head.startswith(MAGIC) else 0
                schema = pa.ipc.open_stream(pa.BufferReader(head[begin:])).schema
                # Raises if a name is not UTF-8.
                _ = [(field.name, str(field.type)) for field in schema]
                return schema
            except DAMAGE:
                continue
        return None

    def _decoded(
        self, stored: StoredFile, batches: Batches, _begin: int, start: int, stop: int
    ) -> Iterator[Rows]:
        """Yield rows [start, stop) in parts of batches."""
        fields = [batches.schema.get_field_index(name) for name in self._columns(batches.schema)]
        with _reader(stored, batches, fields) as reader:
            for k, (first, end) in enumerate(zip(batches.rows, batches.rows[1:], strict=False)):
                low, high = max(start - first, 0), min(stop, end) - first
                if first > stop or first == stop < end:  # a batch without rows may be damage
                    return
                if batches.enterable and (low > high or (low == high and first < end)):
                    continue
                at = 0
                if batches.enterable and low > 0 and batches.is_shared(k):
                    batch, at = self._shared(stored, reader, k, low, high)
                else:
                    batch = reader.batch(k)
                if low < high:
                    yield batch.slice(low - at, high - low), np.arange(first + low, first + high)

    def _shared(
        self, stored: StoredFile, reader: _Reader, number: int, low: int, high: int
    ) -> tuple[pa.RecordBatch, int]:
        """Return rows [low, high) of a compressed batch and some before; and the first one's index.

        They come from the cache if other lanes read parts of the batch too.
        """
        batches, fields = reader.batches, reader.fields
        rows = batches.rows[number + 1] - batches.rows[number]
        num_bytes = batches.ends[number] - batches.begins[number]
        size = max(rows * _SLICE_BYTES // num_bytes, 1)
        if "view" in str(batches.schema):  # a slice is written with the texts of all rows
            size = rows

        def decode(reader: _Reader) -> Iterator[pa.RecordBatch]:
            batch = reader.batch(number)
            yield from (batch.slice(at, size) for at in range(0, rows, size))

        found: list[pa.RecordBatch] = []
        at = low
        what = f"batch {number} {fields} by {size}"
        open_file = partial(_reader, batches=batches, fields=fields)
        for batch, begin in shared_batches(
            self.storage, stored, what, size, low, decode, reader, open_file
        ):
            at = min(at, begin)
            found.append(batch)
            if begin + batch.num_rows >= high:
                break
        return pa.Table.from_batches(found).combine_chunks().to_batches()[0], at


class _Reader:
    """Record batches of an open file.

    Args:
        file: file of pyarrow.
        batches: positions of the batches.
        fields: indices of the fields to read.

    Raises:
        DamagedFileError: the file's footer is damaged.
    """

    def __init__(self, file: Any, batches: Batches, fields: list[int]) -> None:
        self.batches, self.fields = batches, fields
        self._file = file
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        open_ipc = pa.ipc.open_file if batches.by_number else pa.ipc.open_stream
        self._reader = open_ipc(file, options=options)
        wanted = pa.schema([batches.schema.field(number) for number in sorted(set(fields))])
        if batches.by_number and (
            self._reader.num_record_batches != len(batches.ends)
            or not self._reader.schema.equals(wanted)
        ):
            raise DamagedFileError("its footer contradicts its batches or columns")

    def batch(self, number: int) -> pa.RecordBatch:
        """Read a batch; unless the file is enterable, the next one.

        Raises:
            DamagedFileError: the batch is damaged; Arrow's exceptions mean the same.
        """
        batches = self.batches
        if batches.by_number:
            batch = self._reader.get_batch(number)
        else:
            if batches.enterable:
                self._file.seek(batches.begins[number])
            batch = self._reader.read_next_batch()
        batch.validate()
        rows = batches.rows[number + 1] - batches.rows[number]
        if batch.num_rows != rows:
            raise DamagedFileError(f"batch {number} has {batch.num_rows} rows, not {rows}")
        for column in batch.columns:
            _validate(column)
        return batch


@contextmanager
def _reader(file: StoredFile, batches: Batches, fields: list[int]) -> Iterator[_Reader]:
    """Open a file, mapped if it is local."""
    if file.mapped:
        opened = pa.BufferReader(file.array(0, file.num_bytes))
    else:
        opened = pa.PythonFile(file.stream(), "r")
    with opened:
        yield _Reader(opened, batches, fields)


def _validate(column: pa.Array) -> None:
    """Raise Arrow's exception if the offsets in a column would lead out of it."""
    if pa.types.is_string(column.type):  # the reader names the rows that are not UTF-8
        column = column.view(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.view(pa.large_binary())
    column.validate(full=True)
