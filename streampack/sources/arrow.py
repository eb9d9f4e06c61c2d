"""Arrow files as a source, and the byte ranges of their record batches.

Byte ranges and rows of the record batches are read without decoding any batch.

A file of either form is a stream of messages: the schema, then record batches (and dictionaries),
then an end mark. The random access form has a magic number before it and a footer after it. pyarrow
gives the rows of a batch only with its columns, which may have to be unpacked, so the number of
rows is read from the message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from streampack.errors import ConfigError
from streampack.sources.file_source import FileSource
from streampack.sources.formats import FORMATS
from streampack.sources.manifest import Manifest
from streampack.sources.parquet.columns import is_null
from streampack.sources.parquet.footer import DAMAGE
from streampack.sources.parquet.places import Places
from streampack.sources.parquet.source import MOST_FOOTERS, Parquet, RowReader
from streampack.sources.records import DamagedFileError
from streampack.storage.decoded import LEAST_BYTES, shared_batches
from streampack.storage.files import LocalFile, StoredFile
from streampack.storage.listing import has_ending, in_threads
from streampack.storage.remote import FileInfo, shown

MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Batches:
    """The K record batches of a file.

    Attributes:
        schema: schema of all batches.
        rows: K + 1 numbers, rows before each batch.
        ends: K numbers, the byte after each batch; begins: the byte at which each begins.
        compressed: K booleans, True for a batch with compressed columns.
    """

    schema: pa.Schema
    rows: list[int]
    begins: list[int]
    ends: list[int]
    compressed: list[bool]

    @classmethod
    def of(cls, file: Any) -> Batches:
        """Read the batches' positions from an open file of pyarrow, mapped into memory.

        Raises:
            DamagedFileError: the file is cut short, or damaged; Arrow's exceptions mean the same.
        """
        by_number = file.read_at(len(MAGIC), 0) == MAGIC
        file.seek(8 if by_number else 0)
        reader = pa.ipc.MessageReader.open_stream(file)
        first = next(iter(reader), None)
        if first is None:
            raise DamagedFileError("it has no schema")
        found = cls(pa.ipc.read_schema(first), [0], [], [], [])
        while True:
            begin = file.tell()
            try:
                message = reader.read_next_message()
            except StopIteration:
                break
            if message.type == "record batch":
                rows, compressed = _head(message)
                found.rows.append(found.rows[-1] + rows)
                found.compressed.append(compressed)
                found.begins.append(begin)
                found.ends.append(file.tell())
            elif message.type != "dictionary":
                raise DamagedFileError(f'a message of kind "{message.type}" stands for a batch')
        if file.read_at(len(_END), begin) != _END:
            raise DamagedFileError("it is cut short: its end mark is missing")
        if not by_number and begin + len(_END) != file.size():
            raise DamagedFileError(f"its end mark is at byte {begin:,} of {file.size():,}")
        return found

    @property
    def places(self) -> Places:
        """The batches' positions on the weight of the file, from its first byte on."""
        bounds = np.array([0, *self.begins[1:], *self.ends[-1:]], dtype=np.int64)
        return Places(np.array(self.rows, dtype=np.int64), bounds, np.diff(bounds))


def _head(message: Any) -> tuple[int, bool]:
    """Return the rows of a record batch, and True if its columns are compressed.

    The metadata is a flatbuffer: a table begins with an offset back to the list of its fields.
    """
    data = message.metadata.to_pybytes()
    try:
        table = _follow(data, _field(data, _follow(data, 0), 2))
        at = _field(data, table, 0)
        rows = int(struct.unpack_from("<q", data, at)[0]) if at else 0
        compressed = _field(data, table, 3) > 0
    except struct.error as error:
        raise DamagedFileError(f"a batch cannot be followed ({error})") from error
    if rows < 0:
        raise DamagedFileError(f"a batch has {rows} rows")
    return rows, compressed


def _follow(data: bytes, at: int) -> int:
    """Return the position that an offset stored at `at` leads to."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a table; 0 if the field has its default."""
    places = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, places)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, places + 4 + 2 * number)
    return table + offset if offset else 0


_HEADS = (64 << 10, 16 << 20)  # bytes of a file's beginning that are searched for its schema
_SPLITS = "/dataset_dict.json"


class Arrow(Parquet):
    """Documents in a column of Arrow files: IPC files and streams, Feather (version 2), and the
    folders that `datasets.Dataset.save_to_disk` writes.

    Files are mapped into memory and cut at any row, by their bytes, among any number of lanes.
    Columns are read as they lie, without an object per row of token ids. Compressed batches are
    unpacked one at a time; one that several parts share, into the cache, once per host. Arguments
    and columns are as for `Parquet`.

    Raises:
        ConfigError: the arguments exclude each other, or a folder has several splits.
    """

    whole_files = True
    first_bytes = 0
    endings = FORMATS["Arrow"].endings

    def list_shards(self) -> Manifest:
        """List the files; read the schemas of up to `MOST_FOOTERS` of them."""
        infos = self.storage.list(self.paths, endings=(*self.endings, _SPLITS))
        for info in infos:
            if has_ending(info.path, (_SPLITS,)):
                folder = info.path.rpartition("/")[0]
                raise ConfigError(
                    f"{shown(folder)} holds the splits of a dataset.",
                    f'Pass its folder, for example "{shown(folder)}/train".',
                    path=shown(folder),
                )
        seen = infos[:: -(-len(infos) // MOST_FOOTERS)]
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
            "item_bytes": max(map(self._item_bytes, schemas.values())),
        }
        sizes = np.array([info.num_bytes for info in infos], dtype=np.int64)
        return Manifest.of_files(infos, sizes, details)

    def _item_bytes(self, schema: pa.Schema) -> int:
        """Return the bytes per token."""
        if not self.fields.tokenized or self.fields.records is not None:
            return 4
        kind = schema.field(self.column).type
        return (
            1 if is_null(kind) or is_null(kind.value_type) else int(kind.value_type.bit_width) // 8
        )

    def estimate_tokens(self) -> int:
        """Estimate the number of tokens: all bytes are ids, or four of them a token of text."""
        return int(self.manifest.num_bytes.sum()) // int(self.manifest.details["item_bytes"])

    def slow_layout(self) -> str:
        return FileSource.slow_layout(self)

    @contextmanager
    def open_rows(
        self, file: StoredFile, shard: int
    ) -> Iterator[tuple[pa.Schema, Places, RowReader]]:
        with _mapped(file) as opened:
            batches = Batches.of(opened)
            yield batches.schema, batches.places, partial(self._decoded, file, opened, batches)

    def _schema(self, info: FileInfo) -> pa.Schema | None:
        """Return the schema of a file; None if it cannot be read."""
        for size in _HEADS:
            head = self.storage.read_range(info, 0, min(size, info.num_bytes))
            try:
                begin = 8 if head.startswith(MAGIC) else 0
                schema = pa.ipc.open_stream(pa.BufferReader(head[begin:])).schema
                _ = [(field.name, str(field.type)) for field in schema]  # which may not be UTF-8
                return schema
            except DAMAGE:
                continue
        return None

    def _decoded(
        self,
        stored: StoredFile,
        file: Any,
        batches: Batches,
        _begin: int,
        start: int,
        stop: int,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield rows [start, stop) in parts of batches, each with the index of its first row."""
        fields = [batches.schema.get_field_index(name) for name in self._columns(batches.schema)]
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        by_number = file.read_at(len(MAGIC), 0) == MAGIC

        def opened(file: Any) -> Any:
            file.seek(0)
            return (pa.ipc.open_file if by_number else pa.ipc.open_stream)(file, options=options)

        reader = opened(file)
        wanted = pa.schema([batches.schema.field(number) for number in sorted(set(fields))])
        if by_number and (
            reader.num_record_batches != len(batches.ends) or not reader.schema.equals(wanted)
        ):
            raise DamagedFileError("its footer names other batches or columns than there are")
        for k, (first, end) in enumerate(zip(batches.rows, batches.rows[1:], strict=False)):
            low, high = max(start - first, 0), min(stop, end) - first
            if first > stop or first == stop < end:  # one without rows may be damage
                return
            if by_number and (low > high or low == high < end - first):
                continue
            inside = low > 0 and batches.ends[k] - batches.begins[k] >= LEAST_BYTES
            if by_number and inside and batches.compressed[k]:
                batch = self._unfolded(stored, f"batch {k} {fields}", file, opened, k)
            else:
                batch = reader.get_batch(k) if by_number else reader.read_next_batch()
            batch.validate()
            if batch.num_rows != end - first:
                raise DamagedFileError(f"batch {k} has {batch.num_rows} rows, not {end - first}")
            if low < high:
                for column in batch.columns:
                    _validate(column)
                yield batch.slice(low, high - low), first + low

    def _unfolded(
        self, stored: StoredFile, what: str, file: Any, opened: Callable[[Any], Any], number: int
    ) -> pa.RecordBatch:
        """Return a compressed batch, from the cache if other lanes read parts of it too."""

        def decode(file: Any) -> Iterator[pa.RecordBatch]:
            yield opened(file).get_batch(number)

        found = shared_batches(self.storage, stored, what, 1, 0, decode, file, _mapped)
        return next(found)[0]


def _mapped(file: StoredFile) -> Any:
    assert isinstance(file, LocalFile)
    return pa.memory_map(str(file.path))


def _validate(column: pa.Array) -> None:
    """Raise Arrow's exception if the offsets in a column would lead out of it."""
    if pa.types.is_string(column.type):  # the reader names the rows that are not UTF-8
        column = column.view(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.view(pa.large_binary())
    column.validate(full=True)
