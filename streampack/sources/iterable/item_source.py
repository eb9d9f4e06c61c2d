"""Sources whose documents come one by one as Python objects, and how a lane reads them."""

from __future__ import annotations

import itertools
import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import make_origin
from streampack.errors import ConfigError, StateError
from streampack.packing.rng import derive_seed, permutation
from streampack.reading.base import Block, Cursor, LaneReader, Source
from streampack.reading.fields import Fields
from streampack.reading.options import Reading, checked_reading
from streampack.reading.skips import Skips
from streampack.sources.iterable.items import item_block, item_size
from streampack.sources.iterable.objects import check_state, has_exact_state, iterate, kind_name
from streampack.sources.iterable.outside_worker import outside_worker

logger = logging.getLogger(__name__)

_END = object()  # in place of an item


class ItemSource(Source):
    """A source whose documents come one by one as Python objects.

    Subclasses set `fields`, and say how to open a lane. The order is that of the iterable; with
    shuffling, documents are permuted inside blocks, by seed, epoch and place.

    Args:
        reading: how much of the items is read at a time.
    """

    fields: Fields

    def __init__(self, reading: Reading | None) -> None:
        self.reading = checked_reading(reading)

    @abstractmethod
    def open_lane(self, lane: int, lanes: int, epoch: int, shuffle: bool, resume: bool) -> Any:
        """A new iterable over the items of one lane; `resume` is True if a cursor follows."""

    @property
    def tokenized(self) -> bool:  # type: ignore[override]
        """True if items hold token ids."""
        return self.fields.tokenized

    def prepare(self) -> None:
        """Nothing is listed: items are not known before they come."""

    @property
    def grouped(self) -> bool:
        return self.fields.several

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "tokenized": self.fields.tokenized,
            "field": self.fields.document,
            "loss_mask": self.fields.loss_mask,
            "reading": self.reading.describe(),
        }

    def shard_name(self, shard: int) -> str:
        return f"lane {shard}"

    def document_name(self, origin: np.void) -> str:
        return f"item {int(origin['index'])} of lane {int(origin['shard'])}"

    def item_size(self, item: Any) -> int:
        """About the bytes of the document in an item."""
        return item_size(item, self.fields)

    def item_block(
        self, items: Sequence[Any], origin: NDArray[np.void]
    ) -> tuple[Block, dict[int, str]]:
        """A block from items, without the broken ones, and what is wrong with those, by number."""
        return item_block(items, self.fields, origin, self.field_types)

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Sequence[LaneReader]:
        most = self.max_lanes()
        if most is not None and n > most:
            raise ConfigError(
                f"{self.kind} can be split into {most} lanes at most, not {n}.",
                "A lane would have nothing to read.",
                self.more_lanes(most),
            )
        in_blocks = shuffle and self.reading.shuffle_blocks
        return [_ItemLane(self, lane, n, seed, epoch, shuffle, in_blocks) for lane in range(n)]

    def more_lanes(self, most: int) -> str:
        return f"Use lanes={most} or fewer (and as few ranks x workers)."


@dataclass(frozen=True, slots=True)
class _ItemLane(LaneReader):
    """One lane; its cursor is ``{"count": items consumed, "state": the iterable's or null}``.

    `shuffle` is for the iterable; `in_blocks` says whether documents are permuted in their blocks.
    """

    source: ItemSource
    lane: int
    lanes: int
    seed: int
    epoch: int
    shuffle: bool
    in_blocks: bool

    def read(self, cursor: Cursor | None, skips: Skips) -> Iterator[tuple[Block, Cursor]]:
        source = self.source
        count = cursor["count"] if cursor is not None else 0
        state = cursor.get("state") if cursor is not None else None
        with outside_worker():
            items = source.open_lane(
                self.lane, self.lanes, self.epoch, self.shuffle, cursor is not None
            )
            stateful = has_exact_state(items)
            if state is not None:
                if not stateful:
                    raise StateError(
                        f"{kind_name(items)} has no `load_state_dict`, and the saved state has one "
                        "of its states.",
                        "It cannot continue from there.",
                        "Pass the same kind of iterable as when the state was saved.",
                    )
                items.load_state_dict(state)
            iterator = iterate(items)
            if count and state is None:
                self._replay(iterator, count, items)
        while True:
            with outside_worker():
                taken = self._take(iterator)
                state = items.state_dict() if stateful and taken else None
            if not taken:
                return
            if state is not None:
                check_state(state, items)
            block = self._block(taken, count, skips)
            count += len(taken)
            if len(block):
                yield block, {"count": count, "state": state}

    def _replay(self, iterator: Iterator[Any], count: int, items: Any) -> None:
        logger.warning(
            "%s cannot be resumed in the middle: lane %d reads %d items again to skip them.",
            kind_name(items),
            self.lane,
            count,
        )
        if sum(1 for _ in itertools.islice(iterator, count)) < count:
            raise StateError(
                f"{kind_name(items)} ended before item {count}, where the saved state continues.",
                "It does not yield what it yielded when the state was saved.",
                "Pass the same data in the same order, or start a new run.",
            )

    def _take(self, items: Iterator[Any]) -> list[Any]:
        """The items of the next block, which depend on nothing but where it starts."""
        most, most_bytes = self.source.reading.documents_per_block, self.source.reading.block_bytes
        taken: list[Any] = []
        size = 0
        while len(taken) < most and size < most_bytes:
            item = next(items, _END)
            if item is _END:
                break
            taken.append(item)
            size += self.source.item_size(item)
        return taken

    def _block(self, items: list[Any], first: int, skips: Skips) -> Block:
        index = np.arange(first, first + len(items), dtype=np.int64)
        origin = make_origin(self.lane, index)
        block, problems = self.source.item_block(items, origin)
        self.source.report_broken(origin, problems, skips)
        kept, _ = skips.replay(block, self.lane)
        if self.in_blocks and len(kept) > 1:
            seed = derive_seed(self.seed, self.epoch, self.lane, first)
            kept = kept.take(permutation(len(kept), seed))
        return skips.replay_late(kept, self.lane)
