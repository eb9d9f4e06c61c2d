"""The forms that chat records come in: each is read as its format is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.documents.blocks import make_origin
from streampack.reading.base import Block
from streampack.reading.fields import LOSS_FIELDS, Fields
from streampack.reading.manifest import Manifest
from streampack.reading.options import Reading
from streampack.reading.padding import ATTENTION_MASK
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.sources.arrow.table import Table
from streampack.sources.chat.blocks import block_of, field_names, holds_ids, record_size
from streampack.sources.chat.records import RECORD_FIELDS
from streampack.sources.chat.source import Chat, names_files
from streampack.sources.iterable.hf import HFStream
from streampack.sources.iterable.indexed import Items
from streampack.sources.iterable.item_source import ItemSource
from streampack.sources.iterable.objects import is_random_access, kind_name
from streampack.sources.iterable.recognise import is_by_columns, is_hf_stream, refuse_no_corpus
from streampack.sources.iterable.source import Iterable
from streampack.sources.jsonl.source import JSONL
from streampack.sources.parquet.columns import BlockMaker, cut
from streampack.sources.parquet.source import Parquet
from streampack.storage.patterns import has_ending, named_paths
from streampack.storage.storage import Storage

_FIELDS = (*RECORD_FIELDS, "input_ids", *LOSS_FIELDS, ATTENTION_MASK)


class _InShards(Chat, ShardedSource):
    """Conversations in files, or in memory where any record can be asked for: of any lanes.

    Listing finds out whether documents are ids.
    """

    listing_fields: tuple[str, ...] = ("paths", "shape")

    @property
    def tokenized(self) -> bool:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if the records hold ids; lists the files on first use."""
        _ = self.manifest
        return self.fields.tokenized

    def describe(self) -> dict[str, Any]:
        return {**ShardedSource.describe(self), **self.described_rules()}


class ChatLines(_InShards, JSONL):
    """Conversations, or labelled ids, in JSON lines: what the first file holds."""

    def _open(self, data: Any, reading: Reading | None, storage: Storage | None) -> None:
        JSONL.__init__(self, named_paths(data), text="messages", reading=reading, storage=storage)

    def _check_fields(self, path: str, size: int) -> None:
        names = set(self._first_fields(path, size))
        self.fields = Fields(bool(names) and holds_ids(names, path, self.shape))

    def block_of(
        self, lines: list[bytes | None], origin: NDArray[np.void]
    ) -> tuple[Block, dict[int, str]]:
        form = (self.fields.tokenized, self.shape, self.field_types)
        return block_of(lines, origin, *form, self.record_of)


class ChatRows(_InShards, Parquet):
    """Conversations, or labelled ids, in Parquet: what the columns say."""

    def _open(self, data: Any, reading: Reading | None, storage: Storage | None) -> None:
        Parquet.__init__(self, named_paths(data), text="messages", reading=reading, storage=storage)

    def _check_schema(self, name: str, schema: pa.Schema) -> bool:
        self.fields = Fields(holds_ids(set(schema.names), name, self.shape))
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
                form = (self.fields.tokenized, self.shape, self.field_types)
                block, problems = block_of(records[:count], origin, *form)
                self.report_broken(origin, problems, skips)
                start += count
                yield block, start

        return blocks


class ChatTable(ChatRows, Table):
    """Conversations, or labelled ids, in the rows of a table in memory."""

    listing_fields = ()

    def _open(self, data: Any, reading: Reading | None, storage: Storage | None) -> None:
        Table.__init__(self, data, text="messages", reading=reading)

    def __repr__(self) -> str:
        return f"Chat({len(self.data):,} {self.words[0]}s)"

    def _row_sizes(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """(N,) characters, or ids, beside which there are as many labels."""
        width = 8 if self.fields.tokenized else 1
        sizes = [record_size(record) // width for record in batch.to_pylist()]
        return np.array(sizes, dtype=np.int64)


class ChatItems(_InShards, Items):
    """Conversations, or labelled ids, in a list or a map-style dataset."""

    listing_fields = ()

    def _open(self, data: Any, reading: Reading | None, storage: Storage | None) -> None:
        Items.__init__(self, data, text="messages", reading=reading)

    def __repr__(self) -> str:
        return f"Chat({len(self.data):,} items)"

    def list_shards(self) -> Manifest:
        names = field_names(self.first_items())
        self.fields = Fields(holds_ids(names, f"The {self.words[1]}", self.shape))
        return super().list_shards()

    def item_sizes(self, items: Sequence[Any]) -> list[int]:
        width = 2 if self.fields.tokenized else 1  # beside ids there are as many labels
        return [record_size(item) // width for item in items]

    def item_block(
        self, items: Sequence[Any], origin: NDArray[np.void]
    ) -> tuple[Block, dict[int, str]]:
        return block_of(items, origin, self.fields.tokenized, self.shape, self.field_types)


class ChatStream(Chat, ItemSource):
    """Conversations that come one by one, as the source of `items` gives them."""

    def _open(self, data: Any, reading: Reading | None, storage: Storage | None) -> None:
        ItemSource.__init__(self, reading)
        self.items: ItemSource = Iterable(data, text="messages", reading=reading)
        first = self.items.first_item()
        if is_hf_stream(data):
            self.items = HFStream(data, text=next(iter(first), None), reading=reading)
        tokenized = holds_ids(field_names([first]), "The first item of data", self.shape)
        self.fields = Fields(tokenized, "input_ids" if tokenized else "messages")
        self.once = self.items.once
        self._from = kind_name(data)

    def __repr__(self) -> str:
        return f"Chat({self._from} of records)"

    def describe(self) -> dict[str, Any]:
        return {**self.items.describe(), **ItemSource.describe(self), **self.described_rules()}

    def max_lanes(self) -> int | None:
        return self.items.max_lanes()

    def open_lane(self, lane: int, lanes: int, epoch: int, shuffle: bool, resume: bool) -> Any:
        return self.items.open_lane(lane, lanes, epoch, shuffle, resume)

    def item_size(self, item: Any) -> int:
        return record_size(item)

    def item_block(
        self, items: Sequence[Any], origin: NDArray[np.void]
    ) -> tuple[Block, dict[int, str]]:
        return block_of(items, origin, self.tokenized, self.shape, self.field_types)

    def more_lanes(self, most: int) -> str:
        return self.items.more_lanes(most)


def class_of(data: Any) -> type[Chat]:
    """The form of data: files, or what is in memory."""
    if names_files(data):
        parquet = all(has_ending(name, Parquet.endings) for name in named_paths(data))
        return ChatRows if parquet else ChatLines
    refuse_no_corpus(data)
    if is_by_columns(data):
        return ChatTable
    return ChatItems if is_random_access(data) else ChatStream
