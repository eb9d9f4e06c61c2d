"""Any Python iterable as a source: lists, generators, map-style and streaming datasets."""

from __future__ import annotations

import itertools
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Iterable as AnyIterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streampack.arguments import explained
from streampack.documents.blocks import make_origin
from streampack.errors import ConfigError, StateError
from streampack.iterables.iterating import (
    check_state,
    has_exact_state,
    iterate,
    own_copy,
    takes_lanes,
)
from streampack.metrics import user_code
from streampack.packing.rng import derive_seed, permutation
from streampack.sources.arguments import NamedFields
from streampack.sources.base import Block, Cursor, LaneReader, Source
from streampack.sources.broken import report_broken
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.fields import RecordSchema
from streampack.sources.items import (
    has_state,
    is_by_index,
    item_block,
    item_size,
    kind_name,
    outside_worker,
)
from streampack.sources.reading import ReadOptions, checked_reading
from streampack.sources.recognise import (
    fields_in,
    no_items,
    refuse_no_corpus,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)

NO_ITEM = object()  # placeholder for a missing item


class ItemSource(Source):
    """A source of documents that come one by one as Python objects.

    Subclasses set `fields` and implement `open_lane`. Documents keep the iterable's order; with
    shuffling, they are permuted inside blocks, by seed, epoch and position.

    Args:
        reading: limits of a block, in items and bytes.
    """

    fields: RecordSchema
    #: Class of the data, for messages.
    _items_kind: str
    #: Makes a record of an item; None if items are records.
    parse: Callable[[Any], Any] | None = None
    _first: Any = NO_ITEM  # the first item, once it was read

    def __init__(self, reading: ReadOptions | None) -> None:
        self.reading = checked_reading(reading)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_first"}

    @abstractmethod
    def fresh_first(self) -> Any:
        """Read and return the first item without consuming it, or `NO_ITEM` if there is none."""

    def first_item(self, default: Any = NO_ITEM) -> Any:
        """Return the first item, which is read once, or `default` if there is none."""
        if self._first is NO_ITEM:
            self._first = self.fresh_first()
        if self._first is NO_ITEM and default is NO_ITEM:
            raise no_items(self._items_kind)
        return default if self._first is NO_ITEM else self._first

    @abstractmethod
    def open_lane(self, lane: int, lanes: int, epoch: int, shuffle: bool, resume: bool) -> Any:
        """Return a new iterable over one lane's items; `resume` is True if a cursor follows."""

    @property
    def tokenized(self) -> bool:  # type: ignore[override]
        """True if items hold token ids."""
        return self.fields.tokenized

    def prepare(self) -> None:
        """Do nothing: items are not known before they are read."""

    @property
    def grouped(self) -> bool:
        return self.fields.several

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self._kind,
            "tokenized": self.fields.tokenized,
            "field": self.fields.document,
            "loss_mask": self.fields.loss_mask,
            "reading": self.reading.describe(),
            **self.fields.by_function,
        }

    def _shard_name(self, shard: int) -> str:
        return f"lane {shard}"

    def document_name(self, origin: np.void) -> str:
        return f"item {int(origin['index'])} of lane {int(origin['shard'])}"

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Sequence[LaneReader]:
        most = self.max_lanes()
        if most is not None and n > most:
            raise ConfigError(
                f"{self._kind} can be split into {most} lanes at most, not {n}.",
                self.more_lanes(most),
                setting="lanes",
            )
        in_blocks = shuffle and self.reading.shuffle_blocks
        return [_ItemLane(self, lane, n, seed, epoch, shuffle, in_blocks) for lane in range(n)]

    def more_lanes(self, most: int) -> str:
        return f"Use lanes={most} or fewer (and as few ranks x workers)."


@dataclass(frozen=True, slots=True)
class _ItemLane(LaneReader):
    """One lane; its cursor is ``{"count": items consumed, "state": the iterable's or null}``.

    `shuffle` is for the iterable; `in_blocks` is True to permute documents in their blocks.
    """

    source: ItemSource
    lane: int
    lanes: int
    seed: int
    epoch: int
    shuffle: bool
    in_blocks: bool

    def read(self, cursor: Cursor | None, skips: ErrorPolicy) -> Iterator[tuple[Block, Cursor]]:
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
                        "Pass the same kind of iterable as when the state was saved.",
                    )
                items.load_state_dict(state)
            iterator = iterate(items)
            if count and state is None:
                self._replay(iterator, count, items)
        while True:
            with outside_worker(), user_code("iterate_s"):
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
                f"{kind_name(items)} must have item {count}, where the saved state "
                "continues, but ended before.",
                "Pass the same data in the same order, or start a new run.",
            )

    def _take(self, items: Iterator[Any]) -> list[Any]:
        """Return the items of the next block, which depend only on the position of its start."""
        most, most_bytes = self.source.reading.documents_per_block, self.source.reading.block_bytes
        taken: list[Any] = []
        size = 0
        while len(taken) < most and size < most_bytes:
            item = next(items, NO_ITEM)
            if item is NO_ITEM:
                break
            taken.append(item)
            size += item_size(item, self.source.fields)
        return taken

    def _block(self, items: list[Any], first: int, skips: ErrorPolicy) -> Block:
        index = np.arange(first, first + len(items), dtype=np.int64)
        origin = make_origin(self.lane, index)
        source = self.source
        block, problems = item_block(items, source.fields, origin, source.field_types, source.parse)
        report_broken(source, origin, problems, skips)
        if self.in_blocks and len(block) > 1:
            seed = derive_seed(self.seed, self.epoch, self.lane, first)
            return block.take(permutation(len(block), seed))
        return block


_COMPARED = 4  # first items that are compared between two lanes


class Iterable(ItemSource):
    """Documents from any Python iterable.

    Items may be strings, lists of ids, integer arrays, or mappings with one of these in a field.
    Python makes an object per document here; for a large corpus, shards that are
    read in bulk (see `streampack convert`) are at least ten times faster. One lane reads it all;
    lists and map-style datasets are divided among any number of lanes by `Items`.

    Resuming: if the iterable has `state_dict` and `load_state_dict` as the datasets of Hugging
    Face and torchdata do, they are used. They must mean the same: `state_dict()` while iterating
    is the position after the last item, and `load_state_dict(state)` applies to the next `iter()`.
    Every reader works on a copy, so your iterable stays as it is. Any other iterable is read from
    its beginning up to the saved position, with a warning, and must yield the same items each
    time.

    Args:
        data: an iterable; a map-style dataset (`__len__` and `__getitem__`); a function
            ``(lane, lanes) -> iterable``, which makes any number of lanes possible; or one without
            arguments, such as a generator function. A generator can be read only once: one epoch
            and no resuming. If it has `set_epoch`, that is called on a copy when documents are to
            be shuffled.
        tokens: field of token ids, where items are mappings.
        text: field of text, instead. If neither is given, the first item decides: it is the only
            field, or "tokens" or "input_ids", or else "text" or "txt".
        loss_mask: field with one bool (or 1 or 0) per token, or labels: a token's own id where it
            is learnt, and -100 where not; with several fields, a token is learnt if it is learnt
            in all. None reads "loss_mask", "labels", "assistant_masks" and "completion_mask"
            beside ids.
        name: part of the fingerprint of saved states, which tells corpora apart.
        reading: limits of a block, in items and bytes; `open_shards` only sets the default number
            of items.

    Raises:
        ConfigError: the data cannot be iterated, or the field with the documents is unknown; from
            `check_lanes`, a function gives two lanes the same documents.
    """

    @explained
    def __init__(
        self,
        data: AnyIterable[Any] | Callable[..., AnyIterable[Any]],
        *,
        name: str | None = None,
        reading: ReadOptions | None = None,
        **named: Unpack[NamedFields],
    ) -> None:
        super().__init__(reading)
        self.name = name
        refuse_no_corpus(data)
        called = callable(data) and not hasattr(data, "__iter__") and not is_by_index(data)
        self.data: Any = data
        self._called = called
        self._divided = called and takes_lanes(self.data)  # type: ignore[arg-type]
        self.once = not called and hasattr(data, "__next__") and not has_state(data)
        self._begun = False
        self._items_kind = kind_name(data)
        items = self._items(0, 1) if called else data
        if not hasattr(items, "__iter__") and not is_by_index(items):
            raise ConfigError(
                f"data {'gives' if called else 'is'} {kind_name(items)}, which cannot be iterated.",
                remedy="Pass an iterable, or a function (lane, lanes) -> iterable.",
                setting="data",
            )
        self.fields = fields_in(self.first_item, **named)

    def __repr__(self) -> str:
        return f"Iterable({self._items_kind} of {self.fields.in_words})"

    def fresh_first(self) -> Any:
        with outside_worker():
            iterator = iterate(self._items(0, 1))
            first = next(iterator, NO_ITEM)
        if self.once and first is not NO_ITEM:
            self.data = itertools.chain([first], iterator)
        return first

    def describe(self) -> dict[str, Any]:
        length = len(self.data) if hasattr(self.data, "__len__") else None
        return {**super().describe(), "name": self.name, "length": length}

    def _check_lanes(self, n: int, *, seed: int, shuffle: bool) -> None:
        super()._check_lanes(n, seed=seed, shuffle=shuffle)
        if n < 2 or not self._divided:
            return
        with outside_worker():
            first, second = (
                [repr(item) for item in itertools.islice(iterate(self._items(lane, n)), _COMPARED)]
                for lane in (0, 1)
            )
        if first and first == second:
            raise ConfigError(
                f"The function gives lanes 0 and 1 of {n} the same first documents.",
                "Yield each lane's part, such as itertools.islice(documents, lane, None, lanes).",
                setting="data",
            )

    def max_lanes(self) -> int | None:
        return None if self._divided else 1

    def open_lane(self, lane: int, lanes: int, epoch: int, shuffle: bool, resume: bool) -> Any:
        """Return a new iterable over the items of one lane."""
        if self.once:
            if self._begun or resume:
                raise ConfigError(
                    f"A {self._items_kind} can be read only once.",
                    "Pass data that can be iterated repeatedly: a list, a dataset, or a function "
                    "(lane, lanes) -> iterable that makes a new generator.",
                    setting="data",
                )
            self._begun = True
            return self.data
        items = self._items(lane, lanes)
        if shuffle and hasattr(items, "set_epoch"):
            items.set_epoch(epoch)
        return items

    def _items(self, lane: int, lanes: int) -> Any:
        """Return a lane's iterable, not the user's own object unless that can be read only once."""
        if self.once:
            return self.data
        arguments = (lane, lanes) if self._divided else ()
        items = self.data(*arguments) if self._called else self.data
        return own_copy(items, made_new=self._called)

    def more_lanes(self, most: int) -> str:
        return (
            f"Use lanes={most}, or pass a function (lane, lanes) -> iterable that yields each "
            "lane's part. PackedDataset and sources.open divide lists and map-style datasets among "
            "any number of lanes."
        )
