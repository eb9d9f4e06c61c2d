"""Readers of chat records: JSON lines and Parquet, each read as its format is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.documents import Conversation, Conversations, Documents, make_origin
from streampack.errors import ConfigError
from streampack.reading.base import Block
from streampack.reading.manifest import Manifest
from streampack.reading.record_fields import RecordFields
from streampack.reading.records import BrokenDocumentError
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.sources.chat.labelled import labelled_ids_of
from streampack.sources.chat.records import RECORD_FIELDS, conversation_of, known_shapes, shape_of
from streampack.sources.jsonl.lines import LineBlock
from streampack.sources.jsonl.source import JSONL
from streampack.sources.parquet.columns import BlockMaker, cut
from streampack.sources.parquet.source import Parquet
from streampack.storage.remote import shown

__all__ = ["ChatLines", "ChatRows"]

_FIELDS = (*RECORD_FIELDS, "input_ids", "labels", "loss_mask")


class _FormFromFiles(ShardedSource):
    """Listing finds out whether documents are ids; other processes read it in the manifest."""

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


class ChatLines(_FormFromFiles, JSONL):
    """Conversations, or labelled ids, in JSON lines: what the first file holds."""

    def _check_fields(self, path: str, size: int) -> None:
        names = set(self._first_fields(path, size))
        self.tokenized = _holds_ids(names, path, self.shape) if names else False

    def _parse(self, shard: int, block: LineBlock, skips: Skips) -> Block:
        def broken(i: int, reason: BrokenDocumentError) -> None:
            skips.handle(self.broken_document(shard, int(block.index[i]), str(reason)))

        make = _maker(self.tokenized, self.shape, more := RecordFields(self.field_types))
        made = _tried(lambda line: make(self._record(line)), block.lines, broken)
        return _block(made, make_origin(shard, block.index), more)


class ChatRows(_FormFromFiles, Parquet):
    """Conversations, or labelled ids, in Parquet: what the columns say."""

    def _check_schema(self, name: str, schema: pa.Schema) -> bool:
        self.tokenized = _holds_ids(set(schema.names), name, self.shape)
        return False

    def _columns(self, schema: pa.Schema) -> list[str]:
        more = (*self.field_types.token, *self.field_types.document)
        return [name for name in dict.fromkeys((*_FIELDS, *more)) if name in schema.names]

    def _row_sizes(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        return np.ones(batch.num_rows, dtype=np.int64)  # records are of many forms

    def _block_maker(self, shard: int, skips: Skips, schema: pa.Schema) -> BlockMaker:
        say = self._broken(shard, skips)
        limits = (self.reading.documents_per_block, self.reading.block_bytes)

        def blocks(rows: pa.RecordBatch, first: int) -> Iterator[tuple[Block, int]]:
            start = 0
            while start < rows.num_rows:
                records = rows.slice(start, limits[0]).to_pylist()
                sizes = np.array([_size(record) for record in records], dtype=np.int64)
                _, count = next(cut(sizes, limits))
                numbers = np.arange(first + start, first + start + count, dtype=np.int64)

                def broken(
                    i: int, reason: BrokenDocumentError, numbers: NDArray[np.int64] = numbers
                ) -> None:
                    say(int(numbers[i]), str(reason))

                make = _maker(self.tokenized, self.shape, more := RecordFields(self.field_types))
                made = _tried(make, records[:count], broken)
                start += count
                yield _block(made, make_origin(shard, numbers), more), start

        return blocks


def _holds_ids(names: set[str], path: str, shape: str | None) -> bool:
    """True if files with these fields hold ids; raises `ConfigError` if they hold no chats."""
    try:
        if shape is not None or shape_of(names):
            return False
    except BrokenDocumentError as reason:
        raise ConfigError(
            f"{shown(path)} {str(reason).partition(';')[0]}.",
            "One record would be learnt in two ways.",
            'Pass shape="messages" or "sharegpt" for conversations, or shape="preference" for '
            "pairs.",
        ) from None
    if "input_ids" in names:
        return True
    there = ", ".join(f'"{name}"' for name in sorted(names)[:30])
    raise ConfigError(
        f"{shown(path)} has the fields {there}.",
        f'Chat reads {known_shapes()}; and "input_ids" with "labels" or "loss_mask".',
        "Bring the records into one of these forms.",
    )


def _maker(tokenized: bool, shape: str | None, more: RecordFields) -> Callable[[Any], Any]:
    """What makes a conversation, or ids and a mask, of a record, and takes its fields."""

    def make(record: Any) -> Any:
        made: Any = labelled_ids_of(record) if tokenized else conversation_of(record, shape)
        if isinstance(made, Conversation) and made.rejected is not None:
            record = {**record, "group": 0, "chosen": True}  # filled in with the two documents
        more.add(record, len(made[0]) if tokenized else None)
        return made

    return make


def _tried(
    make: Callable[[Any], Any],
    items: Sequence[Any],
    broken: Callable[[int, BrokenDocumentError], None],
) -> dict[int, Any]:
    """What `make` returns for the items, by their numbers, without those that are broken."""
    made: dict[int, Any] = {}
    for i, item in enumerate(items):
        try:
            made[i] = make(item)
        except BrokenDocumentError as reason:
            broken(i, reason)
    return made


def _block(made: dict[int, Any], origin: NDArray[np.void], more: RecordFields) -> Block:
    """Conversations, or pairs of ids and masks, as a block; `origin` (N,) is that of all items."""
    values = list(made.values())
    origin = origin[list(made)]
    if values and isinstance(values[0], tuple):
        ids, masks = [v[0] for v in values], [v[1] for v in values]
        return Documents.from_arrays(ids, origin, masks, more.of_tokens, more.of_documents)
    return Conversations(values, origin, more.of_documents)


def _size(value: Any) -> int:
    """About the bytes of a record."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list):
        return 4 * len(value) if value and isinstance(value[0], int) else sum(map(_size, value))
    return 4
