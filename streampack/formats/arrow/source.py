"""Arrow files as a source.

A file is cut without reading its columns: of a remote one, the heads of the record batches up to a
part are fetched, and the batches of the part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from streampack.errors import ConfigError
from streampack.file_info import FileInfo, Range, shown
from streampack.files.file_source import HEAD_BYTES
from streampack.formats.arrow.batches import MARK, Batches, schema_at
from streampack.formats.rows.columns import Rows, is_null
from streampack.formats.rows.schemas import DAMAGE
from streampack.formats.rows.shared_batches import shared_batches
from streampack.formats.rows.source import OpenRows, RowFiles
from streampack.names.listing import has_ending
from streampack.sources.formats import FORMATS
from streampack.sources.manifest import Manifest
from streampack.sources.records import DamagedFileError
from streampack.storage.files import StoredFile
from streampack.threads import in_threads

_SLICE_BYTES = 256 << 10  # bytes per slice of a compressed batch in the cache
_HEADS = (64 << 10, 16 << 20)  # bytes of a file's beginning that are searched for its schema
_SPLITS = "/dataset_dict.json"


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
        """Yield the heads of the batches before the part, and then the batches of the part.

        The random access form gives the bytes of some columns alone; then only heads are yielded.
        """
        listed, all_columns = self._listed_shard(shard), self.manifest.details["all_columns"]
        yield Range(listed, 0, HEAD_BYTES if low or not all_columns else high)
        with self.storage.open(listed) as file:
            batches = Batches.of(file)
            if batches.places is None and not batches.walk(low, partial(self.storage.open, listed)):
                yield Range(listed, low, high)  # without waiting for another thread
                return
            if batches.places is not None:
                heads = batches.heads(file, low if all_columns else high)
                yield from (Range(listed, *head) for head in heads)
                if not all_columns:
                    return
            if (first := batches.place(file, low)) is not None:
                yield Range(listed, first[0], high)
            if (last := batches.place(file, high - 1)) is not None:
                yield Range(listed, high, last[1])

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
        batches = Batches.of(file)
        if batches.has_dictionaries:
            _ = all(batches.batch(file, number) for number in count())
        yield OpenRows(
            batches.schema,
            batches.has_rows(file),
            partial(batches.row, file),
            partial(batches.reached, file),
            partial(self._decoded, file, batches),
        )

    def _schema(self, info: FileInfo) -> pa.Schema | None:
        """Return the schema of a file; None if it cannot be read."""
        for size in _HEADS:
            head = self.storage.read_range(info, 0, min(size, info.num_bytes))
            try:
                begin = schema_at(head)
                if head[begin : begin + 4] != MARK:  # the schema is in the footer alone
                    with self.storage.open(info) as file:
                        schema = Batches.of(file).schema
                else:
                    schema = pa.ipc.open_stream(pa.BufferReader(head[begin:])).schema
                # Raises if a name is not UTF-8.
                _ = [(field.name, str(field.type)) for field in schema]
                return schema
            except DAMAGE:
                continue
        return None

    def _decoded(
        self, stored: StoredFile, batches: Batches, begin: int, start: int, high: int
    ) -> Iterator[Rows]:
        """Yield the rows from `start` on, in parts of batches."""
        fields = [batches.schema.get_field_index(name) for name in self._columns(batches.schema)]
        with _reader(stored, batches, fields) as reader:
            stop = -1
            for k in count(batches.number_of(start) if batches.enterable else 0):
                if (place := batches.batch(stored, k)) is None:
                    return
                if not batches.enterable and not batches.has_dictionaries:
                    raise DamagedFileError("it has a dictionary for no column")
                stored.needed_again = place.first < begin  # by the part that has these rows
                if stop < 0 or stop > place.first:
                    stop = batches.stop(stored, k, high)
                low, end = max(start - place.first, 0), min(stop, place.stop) - place.first
                is_empty = place.first == place.stop  # which may be damage
                if stop < place.first or (stop == place.first and not is_empty):
                    return
                if batches.enterable and (low > end or (low == end and not is_empty)):
                    continue
                at = 0
                if batches.enterable and low > 0 and place.is_shared:
                    batch, at = self._shared(stored, reader, k, low, end)
                else:
                    batch = reader.batch(k)
                if low < end:
                    numbers = np.arange(place.first + low, place.first + end)
                    yield batch.slice(low - at, end - low), numbers

    def _shared(
        self, stored: StoredFile, reader: _Reader, number: int, low: int, high: int
    ) -> tuple[pa.RecordBatch, int]:
        """Return rows [low, high) of a compressed batch and some before; and the first one's index.

        They come from the cache if other lanes read parts of the batch too.
        """
        batches, fields = reader.batches, reader.fields
        place = batches[number]
        rows = place.stop - place.first
        size = max(rows * _SLICE_BYTES // (place.end - place.begin), 1)
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
        batches: its batches.
        fields: indices of the fields to read.

    Raises:
        DamagedFileError: the file's footer is damaged.
    """

    def __init__(self, file: Any, batches: Batches, fields: list[int]) -> None:
        self.batches, self.fields = batches, fields
        self._file = file
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        open_ipc = pa.ipc.open_stream if batches.places is None else pa.ipc.open_file
        self._reader = open_ipc(file, options=options)
        wanted = pa.schema([batches.schema.field(number) for number in sorted(set(fields))])
        if batches.places is not None and (
            self._reader.num_record_batches != len(batches.places)
            or not self._reader.schema.equals(wanted)
        ):
            raise DamagedFileError("its footer contradicts its batches or columns")

    def batch(self, number: int) -> pa.RecordBatch:
        """Read a batch; unless the file is enterable, the next one.

        Raises:
            DamagedFileError: the batch is damaged; Arrow's exceptions mean the same.
        """
        place = self.batches[number]
        if self.batches.places is not None:
            batch = self._reader.get_batch(number)
        else:
            if self.batches.enterable:
                self._file.seek(place.begin)
            batch = self._reader.read_next_batch()
        batch.validate()
        rows = place.stop - place.first
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
