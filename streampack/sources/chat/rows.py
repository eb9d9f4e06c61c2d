"""Readers of chat records: JSON lines, Parquet, tables and lists, each read as its format is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.documents import make_origin
from streampack.reading.base import Block
from streampack.reading.fields import LOSS_FIELDS
from streampack.reading.manifest import Manifest
from streampack.reading.options import Reading
from streampack.reading.padding import ATTENTION_MASK
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.sources.arrow.table import Table
from streampack.sources.chat.blocks import block_of, field_names, holds_ids, record_size
from streampack.sources.chat.records import RECORD_FIELDS
from streampack.sources.jsonl.source import JSONL
from streampack.sources.parquet.columns import BlockMaker, cut
from streampack.sources.parquet.source import Parquet

_FIELDS = (*RECORD_FIELDS, "input_ids", *LOSS_FIELDS, ATTENTION_MASK)


class _FormFromListing(ShardedSource):
    """Listing finds out whether documents are ids; other processes read it in the manifest."""

    kind = "Chat"
    #: The shape of all records; None to tell it by each one's fields.
    shape: str | None = None
    listing_fields: tuple[str, ...] = ("paths", "shape")

    def list_shards(self) -> Manifest:
        manifest = super().list_shards()  # type: ignore[safe-super]
        manifest.details["tokenized"] = self.tokenized
        return manifest

    def listed(self) -> Manifest:
        manifest = super().listed()
        self.tokenized = bool(manifest.details["tokenized"])
        return manifest


class ChatLines(_FormFromListing, JSONL):
    """Conversations, or labelled ids, in JSON lines: what the first file holds."""

    def _check_fields(self, path: str, size: int) -> None:
        names = set(self._first_fields(path, size))
        self.tokenized = holds_ids(names, path, self.shape) if names else False

    def block_of(
        self, lines: list[bytes | None], origin: NDArray[np.void]
    ) -> tuple[Block, dict[int, str]]:
        form = (self.tokenized, self.shape, self.field_types)
        return block_of(lines, origin, *form, self.record_of)


class ChatRows(_FormFromListing, Parquet):
    """Conversations, or labelled ids, in Parquet: what the columns say."""

    def _check_schema(self, name: str, schema: pa.Schema) -> bool:
        self.tokenized = holds_ids(set(schema.names), name, self.shape)
        return False

    def _columns(self, schema: pa.Schema) -> list[str]:
        more = (*self.field_types.token, *self.field_types.document)
        return [name for name in dict.fromkeys((*_FIELDS, *more)) if name in schema.names]

    def _block_maker(self, shard: int, skips: Skips, schema: pa.Schema) -> BlockMaker:
        limits = (self.reading.documents_per_block, self.reading.block_bytes)

        def blocks(rows: pa.RecordBatch, first: int) -> Iterator[tuple[Block, int]]:
            start = 0
            while start < rows.num_rows:
                records = rows.slice(start, limits[0]).to_pylist()
                sizes = np.array([record_size(record) for record in records], dtype=np.int64)
                _, count = next(cut(sizes, limits))
                numbers = np.arange(first + start, first + start + count, dtype=np.int64)
                origin = make_origin(shard, numbers)
                form = (self.tokenized, self.shape, self.field_types)
                block, problems = block_of(records[:count], origin, *form)
                self.report_broken(origin, problems, skips)
                start += count
                yield block, start

        return blocks


class ChatTable(ChatRows, Table):
    """Conversations, or labelled ids, in the rows of a table in memory."""

    listing_fields = ()

    def _row_sizes(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """(N,) characters, or ids, beside which there are as many labels."""
        width = 8 if self.tokenized else 1
        sizes = [record_size(record) // width for record in batch.to_pylist()]
        return np.array(sizes, dtype=np.int64)


class ChatItems(ChatTable):
    """Conversations, or labelled ids, in records that can be asked for by their number.

    Args:
        data: the records: a list, or a map-style dataset.
        reading: how a lane reads them.
    """

    words = ("item", "list")

    def __init__(self, data: Any, *, reading: Reading | None = None) -> None:
        Parquet.__init__(self, (), reading=reading)
        self.data = data

    def _batch(self, low: int, high: int) -> Any:
        return _Rows([self.data[number] for number in range(low, high)])


class _Rows:
    """Some records, which can be asked what a batch of Arrow's is asked."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = records
        self.num_rows = len(records)

    @property
    def schema(self) -> Any:
        return self

    @property
    def names(self) -> set[str]:
        return field_names(self._records)

    def slice(self, start: int, length: int) -> _Rows:
        return _Rows(self._records[start : start + length])

    def to_pylist(self) -> Sequence[Any]:
        return self._records
