"""Arrow files as a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from streampack.errors import ConfigError
from streampack.reading.base import Block
from streampack.reading.manifest import Manifest
from streampack.reading.records import DamagedFileError
from streampack.reading.skips import Skips
from streampack.sources.arrow.messages import MAGIC, Batches
from streampack.sources.parquet.columns import kinds_of, placed_blocks
from streampack.sources.parquet.footer import DAMAGE
from streampack.sources.parquet.source import MOST_FOOTERS, Parquet
from streampack.storage.failures import is_of_system
from streampack.storage.listing import in_threads
from streampack.storage.patterns import has_ending
from streampack.storage.remote import FileInfo, shown

_HEADS = (64 << 10, 16 << 20)  # of a file, in which its schema is looked for
_SPLITS = "/dataset_dict.json"


class Arrow(Parquet):
    """Documents in a column of Arrow files: IPC files and streams, Feather (version 2), and the
    folders that `datasets.Dataset.save_to_disk` writes.

    Files are mapped into memory and cut at any row, by their bytes, among any number of lanes.
    Columns are read as they lie, without an object per row of token ids. Compressed batches are
    unfolded one at a time. Arguments and columns are those of `Parquet`.

    Raises:
        ConfigError: arguments that do not go together; a folder with several splits.
    """

    endings: tuple[str, ...] = (".arrow", ".feather", ".ipc", ".arrows")

    def list_shards(self) -> Manifest:
        """The files, and the schemas of up to `MOST_FOOTERS` of them."""
        infos = self.storage.list(self.paths, endings=(*self.endings, _SPLITS))
        for info in infos:
            if has_ending(info.path, (_SPLITS,)):
                folder = info.path.rpartition("/")[0]
                raise ConfigError(
                    f"{shown(folder)} holds the splits of a dataset.",
                    "A run reads one split.",
                    f'Pass its folder, for example "{shown(folder)}/train".',
                )
        seen = infos[:: -(-len(infos) // MOST_FOOTERS)]
        schemas = {
            i.path: s for i, s in zip(seen, in_threads(self._schema, seen), strict=True) if s
        }
        if not schemas:
            raise ConfigError(
                f"{shown(seen[0].path)} is not an Arrow file (IPC, or Feather version 2).",
                f"None of the {len(seen)} files that were checked can be read.",
                "Check the path, and that the files are complete.",
            )
        path, first = next(iter(schemas.items()))
        self.fields = self.fields.found_in(kinds_of(first), shown(path))
        narrow = [self._check_schema(path, schema) for path, schema in schemas.items()]
        details = {
            "dtype": self._dtype_name(all(narrow)),
            "documents": None,
            "fields": self.fields,
            "item_bytes": self._item_bytes(first),
        }
        return Manifest.of_files(infos, details=details)

    def _item_bytes(self, schema: pa.Schema) -> int:
        """Bytes per token."""
        if not self.fields.tokenized or self.fields.records is not None:
            return 4
        return int(schema.field(self.column).type.value_type.bit_width) // 8

    def estimate_tokens(self) -> int:
        """A rough number of tokens: all bytes are ids, or four of them a token of text."""
        return int(self.manifest.num_bytes.sum()) // int(self.manifest.details["item_bytes"])

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: Skips
    ) -> Iterator[tuple[Block, int, int]]:
        """Blocks of one file; see `ShardedSource.read_shard`."""
        row = position or 0
        with self.open_shard(shard) as path:
            try:
                with pa.memory_map(str(path)) as file:
                    batches = Batches.of(file)
                    self._check_listed(shard, batches.schema)
                    stop = batches.rows[-1]
                    if high < self.manifest.weights[shard]:
                        stop = batches.row_at(high)
                    row = max(batches.row_at(low), row)
                    blocks = self._block_maker(shard, skips, batches.schema)
                    decoded = self._decoded(file, batches, row, stop)
                    for block, row, place in placed_blocks(
                        decoded, blocks, (low, high), stop, batches.byte_of
                    ):
                        yield block, row, place
            except DAMAGE as error:
                if is_of_system(error):
                    raise
                self._unreadable(shard, row, error)

    def _schema(self, info: FileInfo) -> pa.Schema | None:
        """The schema of a file; None if it cannot be read."""
        for size in _HEADS:
            head = self.storage.read_range(info.path, 0, min(size, info.num_bytes))
            try:
                begin = 8 if head.startswith(MAGIC) else 0
                schema = pa.ipc.open_stream(pa.BufferReader(head[begin:])).schema
                _ = [(field.name, str(field.type)) for field in schema]  # which may not be UTF-8
                return schema
            except DAMAGE:
                continue
        return None

    def _decoded(
        self, file: Any, batches: Batches, start: int, stop: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The rows [start, stop) in parts of batches, each with the number of its first row."""
        fields = [batches.schema.get_field_index(name) for name in self._columns(batches.schema)]
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        by_number = file.read_at(len(MAGIC), 0) == MAGIC
        file.seek(0)
        reader = (pa.ipc.open_file if by_number else pa.ipc.open_stream)(file, options=options)
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
            batch = reader.get_batch(k) if by_number else reader.read_next_batch()
            batch.validate()
            if batch.num_rows != end - first:
                raise DamagedFileError(f"batch {k} has {batch.num_rows} rows, not {end - first}")
            if low < high:
                for column in batch.columns:
                    _validate(column)
                yield batch.slice(low, high - low), first + low


def _validate(column: pa.Array) -> None:
    """Raise what Arrow raises if following the numbers in a column would lead out of it."""
    if pa.types.is_string(column.type):  # of which the reader finds what is not UTF-8
        column = column.view(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.view(pa.large_binary())
    column.validate(full=True)
