"""Lists and map-style datasets as a source: any lane can read any item by its index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from streampack.arguments import explained
from streampack.documents.blocks import make_origin
from streampack.errors import ConfigError
from streampack.metrics import user_code
from streampack.sources.arguments import NamedFields
from streampack.sources.base import Block
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.items import (
    is_random_access,
    item_block,
    item_sizes,
    kind_name,
    outside_worker,
)
from streampack.sources.manifest import Manifest
from streampack.sources.reading import ReadOptions
from streampack.sources.recognise import (
    fields_in,
    no_items,
    refuse_no_corpus,
)
from streampack.sources.sharded import ShardedSource

if TYPE_CHECKING:
    from typing_extensions import Unpack

SHARD_ITEMS = 8192
_LOOKED_AT = 100  # items inspected for their fields and their length
_NONE = object()  # placeholder for a missing item


class InMemory(ShardedSource):
    """Documents that are read by index. Shuffling treats every 8,192 of them as a shard."""

    endings: tuple[str, ...] = ()
    #: Names of one document and of the data, for messages.
    words: tuple[str, str]

    def numbered(self, count: int, mean_tokens: float, details: dict[str, Any]) -> Manifest:
        """Return the manifest of `count` documents, which weigh one each."""
        begins = np.arange(0, count, SHARD_ITEMS, dtype=np.int64)
        held = np.minimum(count - begins, SHARD_ITEMS)
        details = {**details, "documents": held, "mean_tokens": mean_tokens}
        ends = (begins + held - 1).tolist()
        names = [
            f"{self.words[0]}s {begin:,} to {end:,}"
            for begin, end in zip(begins.tolist(), ends, strict=True)
        ]
        return Manifest(names, held, held, details)

    def estimate_tokens(self) -> int:
        """Estimate the number of tokens from the first documents."""
        return max(int(self.manifest.details["mean_tokens"] * self.manifest.weight), 1)

    def document_name(self, origin: np.void) -> str:
        number = int(origin["shard"]) * SHARD_ITEMS + int(origin["index"])
        return f"{self.words[0]} {number} of the {self.words[1]}"


class Items(InMemory):
    """Documents from a list, an array or a map-style dataset, cut at any item among any lanes.

    Items are as for `Iterable`. `Documents.origin` holds the index of a shard, which is 8,192
    items, and the index of the item in it.

    Args:
        data: an object with a length that returns any item by its index; it is not copied.
        tokens: as for `Iterable`.
        text: as for `Iterable`.
        loss_mask: as for `Iterable`.
        reading: limits of blocks and open shards.

    Raises:
        ConfigError: items cannot be read by index, or the field with the documents is unknown.
    """

    #: Makes a record of an item; None if items are records.
    parse: Callable[[Any], Any] | None = None

    @explained
    def __init__(
        self,
        data: Any,
        *,
        reading: ReadOptions | None = None,
        **named: Unpack[NamedFields],
    ) -> None:
        super().__init__(reading=reading)
        refuse_no_corpus(data)
        kind = kind_name(data)
        if not is_random_access(data):
            raise ConfigError(
                f"data must have a length and items by index, got {kind}.",
                "Pass it to sources.Iterable.",
                setting="data",
            )
        self.data = data
        self.words = ("item", kind.rpartition(".")[2])
        self.fields = fields_in(self.first_item, **named)

    @property
    def grouped(self) -> bool:
        return self.fields.several

    def __repr__(self) -> str:
        return f"Items({self.words[1]} of {len(self.data):,} {self.fields.in_words})"

    def describe(self) -> dict[str, Any]:
        fields = self.fields
        named = {"tokenized": fields.tokenized, "field": fields.document}
        return {**super().describe(), **named, "loss_mask": fields.loss_mask}

    def items(self, low: int, high: int) -> Iterator[Any]:
        """Yield items [low, high)."""
        if type(self.data) in (list, tuple):
            return iter(self.data[low:high])
        data = getattr(self.data, "iloc", self.data)  # a Series is indexed by its labels
        return (data[number] for number in range(low, high))

    def first_items(self) -> list[Any]:
        """Return the first items, for a look at their fields and length."""
        return list(self.items(0, min(len(self.data), _LOOKED_AT)))

    def first_item(self, default: Any = _NONE) -> Any:
        """Return the first item, or `default` if there is none."""
        if not len(self.data) and default is _NONE:
            raise no_items(kind_name(self.data))
        return next(self.items(0, min(len(self.data), 1)), default)

    def list_shards(self) -> Manifest:
        sizes = item_sizes(self.first_items(), self.fields)
        mean = float(sizes.mean()) if len(sizes) else 0.0
        return self.numbered(len(self.data), mean / 4, {})

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: ErrorPolicy
    ) -> Iterator[tuple[Block, int, int]]:
        """Yield blocks of items, which weigh one each; see `ShardedSource.read_shard`."""
        at, base = low if position is None else position, shard * SHARD_ITEMS
        reading = self.reading
        items = self.items(base + at, base + high)
        waiting: list[Any] = []
        while at < high:
            with outside_worker(), user_code("iterate_s"):
                waiting += islice(items, reading.documents_per_block - len(waiting))
            num_bytes = item_sizes(waiting, self.fields).cumsum()
            taken = waiting[: int(num_bytes.searchsorted(reading.block_bytes)) + 1]
            waiting = waiting[len(taken) :]
            origin = make_origin(shard, np.arange(at, at + len(taken), dtype=np.int64))
            block, problems = item_block(taken, self.fields, origin, self.field_types, self.parse)
            if problems:
                from streampack.sources.broken import report_broken

                report_broken(self, origin, problems, skips)
            at += len(taken)
            yield block, at, at
