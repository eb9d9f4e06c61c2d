"""Parquet: a text column, or a column with lists of token ids, read by pyarrow.

Listing reads footers only. A shard is then read by row groups, a batch of rows at a time: batches
begin at fixed rows of their row group, a block never crosses a batch, and so a block is a pure
function of the row it starts at. Blocks of ids and masks are views of Arrow's buffers if their type
allows it; texts become Python strings, the only type that tokenizers accept.

Cost: decoding, about 6 ns per id; then per document nothing for ids, one string for texts. Arrow
cannot start in the middle of a row group: the rows before are decoded and dropped. Where a row
group is cut, its column is decoded once more, to find the row at which a part begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.file_info import FileInfo, Range, shown
from streampack.formats.parquet.footer import Footer, read_footer
from streampack.formats.parquet.positions import chunks_of, footer_of, open_file
from streampack.formats.rows.columns import Rows
from streampack.formats.rows.offsets import Offsets
from streampack.formats.rows.schemas import DECRYPT, ENCRYPTED
from streampack.formats.rows.source import OpenRows, RowFiles
from streampack.sources.formats import FORMATS
from streampack.sources.manifest import Manifest
from streampack.sources.records import DamagedFileError
from streampack.storage.files import LEAST_BYTES, StoredFile
from streampack.threads import in_threads

_FOOTER_THREADS = 64
#: Number of short rows decoded at once: fewer take more time, more take memory.
_BATCH_ROWS = 1024
_BATCH_BYTES = 256 << 10


class Parquet(RowFiles):
    """Documents in a column of Parquet files, cut at any row among any number of lanes.

    Row groups are cut as if their rows were equal. A row group that is cut into many parts is
    decoded into the cache, once per host; of others, each part decodes and drops the rows before.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        text: the column that holds the text (any string type).
        tokens: the column that holds lists of token ids, of any integer type. They become uint16
            where the column of a file is uint8 or uint16, else uint32; an id outside of that
            range breaks its document. If neither is given, the documents are in "text", "txt",
            "tokens" or "input_ids", whichever exists alone with the right type, or else in the
            only column.
        loss_mask: with `tokens`, a column with lists of as many booleans (or 1 and 0), or labels: a
            token's own id where it is learnt, and -100 where not. With several columns, a token is
            learnt if it is learnt in all. None reads "loss_mask", "labels", "assistant_masks" and
            "completion_mask" if they exist; an empty list reads no column.
        where: a condition on columns, as a pyarrow expression or as text, such as
            ``lang == "en" and score >= 0.5``; other rows are left out (docs/sources.md).
        reading: limits of blocks and open shards.
        storage: access to files and their cache.

    Raises:
        ConfigError: the arguments exclude each other.
    """

    endings = FORMATS["Parquet"].endings
    #: Field ids of columns, if files know them by these; None takes names.
    _field_ids: Mapping[str, int] | None = None

    def ranges(self, shard: int, low: int, high: int) -> Iterator[Range]:
        """Yield the columns of the part's row groups, each from its beginning."""
        from streampack.formats.parquet.chunks import in_order

        listed = self._listed_shard(shard)
        with self.storage.open(listed) as file:
            chunks = chunks_of(file, self.wanted_columns)  # not by pyarrow
            positions = Offsets.of(chunks.row_groups, int(self.manifest.weights[shard]))
            start, stop = positions.row(low), positions.row(high)
            groups = self._groups(file, positions, start, stop)
        shares = positions.shares(groups, start, stop)
        yield from (Range(listed, *part) for part in in_order(chunks, shares))

    def list_shards(self) -> Manifest:
        """List the files, which weigh their stored bytes; read the footers of a sample.

        Other footers are read when their files are opened: a million of them would take most of an
        hour.
        """
        infos = self._files()
        seen = self._sampled(infos)
        footers = in_threads(lambda info: read_footer(self.storage, info), seen, _FOOTER_THREADS)
        any_rows = any(footer.rows > 0 for footer in footers)
        schemas = {
            info.path: footer.schema
            for info, footer in zip(seen, footers, strict=True)
            if footer.schema is not None and (footer.rows > 0 or not any_rows)
        }
        if not schemas:
            raise ConfigError(
                f"{shown(seen[0].path)} cannot be read as Parquet: {footers[0].problem}.",
                f"{DECRYPT}."
                if footers[0].problem == ENCRYPTED
                else "Check the path, and that the files are complete.",
                path=shown(seen[0].path),
            )
        narrow = self._read_schemas(schemas)
        weights, estimate = self._weighed(infos, seen, footers)
        rows = np.array([footer.rows for footer in footers], dtype=np.int64)
        details = {
            "dtype": self._dtype_name(narrow),
            "documents": rows if len(seen) == len(infos) else None,
            "fields": self.fields,
            "encoded_bytes": estimate,
        }
        if self.where is not None:
            from streampack.formats.parquet.where import left_out

            details |= left_out(self, self.where, seen, estimate)
        return Manifest.of_files(infos, weights, details)

    def _files(self) -> Sequence[FileInfo]:
        """Return the files to read, sorted by path."""
        return self.storage.list(self.paths, endings=self.endings)

    def _weighed(
        self, infos: Sequence[FileInfo], seen: Sequence[FileInfo], footers: Sequence[Footer]
    ) -> tuple[NDArray[np.int64] | None, int]:
        """Return the weights of the files, (F,), and an estimate of the bytes of all rows."""
        stored = np.array([info.num_bytes for info in infos], dtype=np.int64)
        encoded = sum(footer.num_bytes for footer in footers)
        estimate = encoded * int(stored.sum()) // sum(info.num_bytes for info in seen)
        any_rows = any(footer.rows > 0 for footer in footers)
        return stored * bool(any_rows or len(seen) < len(infos)), estimate

    def estimate_tokens(self) -> int:
        """Estimate the number of tokens: 2 bytes per id, 4 per token of text, no other columns.

        Fields with several numbers per token count, because they are most of a file.
        """
        token_bytes = 2 + self.field_types.shaped_bytes if self.tokenized else 4
        return int(self.manifest.details["encoded_bytes"]) // token_bytes

    def _slow_layout(self) -> str:
        from streampack.formats.parquet.layout import slow_row_groups

        return slow_row_groups(self) or super()._slow_layout()

    def _groups(self, file: StoredFile, positions: Offsets, start: int, stop: int) -> list[int]:
        """Return the row groups of the rows [start, stop) that may have rows to read."""
        groups = positions.groups(start, stop)
        if self.where is not None:
            from streampack.formats.parquet.statistics import pruned_groups

            pruned, _ = pruned_groups(file, self.where, self._field_ids)
            groups = [group for group in groups if group not in pruned]
        return groups

    @contextmanager
    def open_rows(self, file: StoredFile, shard: int) -> Iterator[OpenRows]:
        footer, positions = footer_of(file, int(self.manifest.weights[shard]))
        listed = self.manifest.details["documents"]
        if listed is not None and footer.num_rows != listed[shard]:
            raise DamagedFileError("its number of rows has changed since it was listed")
        with open_file(file, footer) as data:
            read, some = partial(self._batches, file, data, positions), bool(positions.rows[-1])
            yield OpenRows(data.schema_arrow, some, positions.row, positions.reached, read)

    def _batches(
        self,
        file: StoredFile,
        opened: pq.ParquetFile,
        positions: Offsets,
        begin: int,
        start: int,
        high: int,
    ) -> Iterator[Rows]:
        """Yield batches of the rows of a part from `start` on."""
        columns, stop = self._columns(opened.schema_arrow), positions.row(high)
        for number in self._groups(file, positions, start, stop):
            first, end = int(positions.rows[number]), int(positions.rows[number + 1])
            file.needed_again = first < begin  # by the part that has these rows
            num_bytes = int(positions.sizes[number])
            size = self._batch_rows(end - first, num_bytes)

            def whole_group(file: StoredFile, number: int = number) -> pq.ParquetFile:
                if not file.mapped:
                    from streampack.formats.parquet.chunks import in_order

                    file.plan(in_order(chunks_of(file, self.wanted_columns), {number: 1.0}))
                return open_file(file, opened.metadata)

            def decode(
                opened: pq.ParquetFile, number: int = number, size: int = size
            ) -> Iterator[pa.RecordBatch]:
                return opened.iter_batches(size, [number], columns, use_threads=False)  # type: ignore[no-any-return]

            inside = num_bytes >= LEAST_BYTES and positions.is_divided(number, begin, stop)
            what = f"row group {number} by {size} {columns}"
            skipped, reached = max(start - first, 0), 0
            batches = _placed(decode(opened))
            if inside:
                from streampack.formats.rows.shared_batches import shared_batches

                batches = shared_batches(
                    self.storage, file, what, size, skipped, decode, opened, whole_group
                )
            for batch, at in batches:
                low, high = max(start - first - at, 0), min(stop - first - at, batch.num_rows)
                if low < high:
                    yield (
                        batch.slice(low, high - low),
                        np.arange(first + at + low, first + at + high),
                    )
                reached = first + at + batch.num_rows
                file.needed_again = reached < begin
                if reached >= stop:
                    return
            if reached != end:
                raise DamagedFileError(f"row group {number} is too short")

    def _batch_rows(self, rows: int, num_bytes: int) -> int:
        """Return the rows to decode at once: a block, several of short rows, part of a long one."""
        row_bytes, reading = max(num_bytes // max(rows, 1), 1), self.reading
        block = max(1, min(reading.documents_per_block, 2 * reading.block_bytes // row_bytes))
        return block * max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes) // block)


def _placed(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches of a row group, each with the index of its first row."""
    first = 0
    for batch in batches:
        yield batch, first
        first += batch.num_rows
