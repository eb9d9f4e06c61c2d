"""Any Python iterable as a source: lists, generators, map-style and streaming datasets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from collections.abc import Iterable as AnyIterable
from typing import Any

from streampack.arguments import explained
from streampack.errors import ConfigError
from streampack.reading.options import Reading
from streampack.sources.iterable.item_source import ItemSource
from streampack.sources.iterable.objects import (
    has_state,
    is_by_index,
    iterate,
    kind_name,
    own_copy,
    takes_lanes,
)
from streampack.sources.iterable.outside_worker import outside_worker
from streampack.sources.iterable.recognise import (
    Rows,
    fields_in,
    is_table,
    no_items,
    refuse_no_corpus,
)

_COMPARED = 4  # first items of two lanes, to see whether they are the same
_NONE = object()  # in place of an item


class Iterable(ItemSource):
    """Documents from any Python iterable.

    Items may be strings, lists of ids, integer arrays, or mappings with one of these in a field.
    Python makes an object per document here; for a large corpus, shards that are
    read in bulk (see `streampack convert`) are at least ten times faster. One lane reads it all;
    lists and map-style datasets are divided among any number of lanes by `Items`.

    Resuming: if the iterable has `state_dict` and `load_state_dict` as the datasets of Hugging
    Face and torchdata do, they are used. They must mean the same: `state_dict()` while iterating
    is the place after the last item, and `load_state_dict(state)` applies to the next `iter()`.
    Every reader works on a copy, so your iterable stays as it is. Anything else is read
    again from its beginning up to the saved place, with a warning that says so, and must yield
    the same items each time.

    Args:
        data: an iterable; a map-style dataset (`__len__` and `__getitem__`); a table of pyarrow,
            pandas or polars, whose rows are the items; a function
            ``(lane, lanes) -> iterable``, which makes any number of lanes possible; or one without
            arguments, such as a generator function. A generator can be read only once: one epoch
            and no resuming. If it has `set_epoch`, that is called on a copy when documents are to
            be shuffled.
        tokens: field of token ids, where items are mappings.
        text: field of text, instead. If neither is given, the first item decides: it is the only
            field, or "tokens" or "input_ids", or else "text" or "txt".
        loss_mask: field with one bool (or 1 or 0) per token, or labels: a token's own id where it
            is learnt, and -100 where not; of several fields, all must say so. If nothing is named,
            "loss_mask", "labels", "assistant_masks" and "completion_mask" beside ids.
        name: part of the fingerprint of saved states, which tells corpora apart.
        reading: how many items a block holds; `open_shards` only sets the default of that.

    Raises:
        ConfigError: the data cannot be iterated, or it is unknown which field holds the documents;
            of `check_lanes`, a function gives two lanes the same documents.
    """

    @explained
    def __init__(
        self,
        data: AnyIterable[Any] | Callable[..., AnyIterable[Any]],
        *,
        tokens: str | None = None,
        text: str | None = None,
        loss_mask: str | Sequence[str] | None = None,
        name: str | None = None,
        reading: Reading | None = None,
    ) -> None:
        super().__init__(reading)
        self.name = name
        refuse_no_corpus(data)
        called = callable(data) and not hasattr(data, "__iter__") and not is_by_index(data)
        if not called and not hasattr(data, "__iter__") and not is_by_index(data):
            raise ConfigError(
                f"data is {kind_name(data)}.",
                "It cannot be iterated.",
                "Pass an iterable, or a function (lane, lanes) -> iterable.",
            )
        made: Any = Rows(data) if is_table(data) else data
        self.data = made
        self._called = called
        self._divided = called and takes_lanes(self.data)
        self.once = not called and hasattr(data, "__next__") and not has_state(data)
        self._begun = False
        self._kind = kind_name(data)
        if called:
            self._check_function()
        self.fields = fields_in(self.first_item, text=text, tokens=tokens, loss_mask=loss_mask)

    def __repr__(self) -> str:
        return f"Iterable({self._kind} of {self.fields.in_words})"

    def _check_function(self) -> None:
        items = self._items(0, 1)
        if hasattr(items, "__next__") and self._items(0, 1) is items:
            raise ConfigError(
                f"The function returned the same {kind_name(items)} twice.",
                "What is read from it once would be missing the next time.",
                "Make a new one in the function.",
            )
        if not hasattr(items, "__iter__") and not is_by_index(items):
            raise ConfigError(
                f"The function returned {kind_name(items)}.",
                "It cannot be iterated.",
                "Return an iterable of documents, or make it a generator with `yield`.",
            )

    def first_item(self, default: Any = _NONE) -> Any:
        """The first item, which is not lost by being looked at; `default` where there is none."""
        with outside_worker():
            iterator = iterate(self._items(0, 1))
            first = next(iterator, default)
        if first is _NONE:
            raise no_items(self._kind)
        if self.once and first is not default:
            self.data = itertools.chain([first], iterator)
        return first

    def describe(self) -> dict[str, Any]:
        length = len(self.data) if hasattr(self.data, "__len__") else None
        return {**super().describe(), "name": self.name, "length": length}

    def check_lanes(self, n: int, *, seed: int, shuffle: bool) -> None:
        super().check_lanes(n, seed=seed, shuffle=shuffle)
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
                "Every lane would deliver the whole corpus.",
                "Yield each lane's part, for example itertools.islice(documents, lane, None, "
                "lanes); or pass a function without arguments, and lanes=1.",
            )

    def max_lanes(self) -> int | None:
        return None if self._divided else 1

    def open_lane(self, lane: int, lanes: int, epoch: int, shuffle: bool, resume: bool) -> Any:
        """A new iterable over the items of one lane."""
        if self.once:
            if self._begun or resume:
                raise ConfigError(
                    f"A {self._kind} can be read only once.",
                    "A second epoch and resuming both need its beginning again.",
                    "Pass something that can be iterated again: a list, a dataset, or a function "
                    "(lane, lanes) -> iterable that makes a new generator.",
                )
            self._begun = True
            return self.data
        items = self._items(lane, lanes)
        if shuffle and hasattr(items, "set_epoch"):
            items.set_epoch(epoch)
        return items

    def _items(self, lane: int, lanes: int) -> Any:
        """What a lane passes over: never the user's own object, unless it can be read only once."""
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
