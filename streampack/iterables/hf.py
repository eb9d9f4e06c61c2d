"""Streaming datasets of Hugging Face as a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from streampack.arguments import explained
from streampack.errors import ConfigError, StateError
from streampack.formats.rows.records import row_parser
from streampack.iterables.hf_steps import (
    keeps_first_order,
    repair_skips,
    split_after_shuffle,
    undivided_step,
)
from streampack.iterables.iterating import has_node, iterate, own_copy
from streampack.iterables.source import NO_ITEM, ItemSource
from streampack.sources.arguments import NamedFields
from streampack.sources.items import kind_name
from streampack.sources.reading import ReadOptions
from streampack.sources.recognise import fields_in

if TYPE_CHECKING:
    from typing_extensions import Unpack


def dataset_parser(data: Any) -> Callable[[Any], Any] | None:
    """Return the function that makes a record of a row of a dataset of Hugging Face.

    Return None if the rows are records already, as in other data and in generators.
    """
    if not kind_name(data).startswith("datasets."):
        return None
    features = getattr(data, "features", None)
    if features is None and not has_node(getattr(data, "_ex_iterable", None), ("Arrow",)):
        return None
    return row_parser(features and features.arrow_schema, decoded=True)


class HFStream(ItemSource):
    """Documents from a `datasets.IterableDataset`, as `load_dataset(..., streaming=True)` gives.

    A lane reads ``dataset.shard(lanes, lane)``, so there can be as many lanes as the dataset has
    shards (usually files). One lane, which any number of ranks share, reads a dataset with a step
    that depends on the number of shards: `take`, `skip`, `repeat`, `interleave_datasets`, and
    `map` or `filter` with ``with_indices`` or ``drop_last_batch``.

    Resuming: a cursor holds the `state_dict` of the dataset, which continues inside a file. A
    dataset with a shuffle buffer (`dataset.shuffle(...)`) has a state too, but it lacks the rows in
    the buffer; such a dataset is read from its beginning up to the saved position instead, with a
    warning, and repeats its order only with a fixed seed. It is better not to shuffle there:
    streampack permutes documents inside blocks anyway. In datasets 5.0 a shuffled dataset is one
    shard.

    Epochs: if documents are to be shuffled, `set_epoch(epoch)` is called on the dataset. Since
    datasets 5 this reorders its shards in every epoch but the first; before that, only if
    `dataset.shuffle(...)` was called. A lane keeps its shards. Documents selected by position
    (`take`, `skip`, ``with_indices``) are the same in every epoch, so such a step after a shuffle
    requires ``epochs=1`` or ``shuffle=False``.

    Args:
        dataset: the streaming dataset, not split by node: every rank passes the same one.
        tokens: column of token ids.
        text: column of text, instead. If neither is given, the first row decides, as for
            `Iterable`.
        loss_mask: column with a loss mask or labels, as for `Iterable`.
        reading: limits of a block, in rows and bytes; `open_shards` only sets the default number
            of rows.

    Raises:
        ConfigError: `dataset` is not a streaming dataset, is split by node, or has no column that
            is clearly the document.
    """

    @explained
    def __init__(
        self,
        dataset: Any,
        *,
        reading: ReadOptions | None = None,
        **named: Unpack[NamedFields],
    ) -> None:
        super().__init__(reading)
        if getattr(dataset, "_distributed", None) is not None:
            raise ConfigError(
                "The dataset must not be split by node: streampack gives each rank its lanes.",
                remedy="Pass the whole dataset on every rank, without split_dataset_by_node.",
                setting="dataset",
            )
        self.dataset = dataset
        self._items_kind = kind_name(dataset)
        self._undivided = undivided_step(dataset._ex_iterable)
        self.fields = fields_in(self.first_item, **named)

    def fresh_first(self) -> Any:
        return next(iterate(own_copy(self.dataset, made_new=False)), NO_ITEM)

    def __repr__(self) -> str:
        return f"HFStream({self.fields.in_words}, shards={self.dataset.num_shards})"

    def max_lanes(self) -> int | None:
        return 1 if self._undivided else int(self.dataset.num_shards)

    def _check_epochs(self, epochs: int | None, shuffle: bool) -> None:
        """Refuse epochs that would select other documents by position."""
        calls = split_after_shuffle(self.dataset._ex_iterable)
        if calls is not None and epochs != 1 and shuffle:
            raise ConfigError(
                f"epochs must be 1 for a stream with {calls[0]} after {calls[1]}, which selects "
                f"other documents in every epoch, got {epochs}.",
                f"Call {calls[0]} before {calls[1]}, or pass epochs=1 or shuffle=False.",
                setting="epochs",
            )

    def describe(self) -> dict[str, Any]:
        info = self.dataset.info
        return {
            **super().describe(),
            "builder": info.builder_name,
            "config": info.config_name,
            "version": None if info.version is None else str(info.version),
            "split": None if self.dataset.split is None else str(self.dataset.split),
            "num_shards": int(self.dataset.num_shards),
            **({"undivided": self._undivided} if self._undivided else {}),
        }

    def _as_saved(self, described: Mapping[str, Any], how: str = "saved") -> HFStream:
        """Refuse a state of a run that divided a step among lanes."""
        if self._undivided and "num_shards" in described and "undivided" not in described:
            raise StateError(
                f"The state was saved when {self._undivided} was divided among lanes, which read "
                "other documents than the stream gives.",
                "Start a new run; one lane reads the stream now.",
                setting="source.undivided",
            )
        return self

    def open_lane(self, lane: int, lanes: int, epoch: int, shuffle: bool, resume: bool) -> Any:
        """Return a lane's part of the dataset, as a new object."""
        if self._undivided:
            part = own_copy(self.dataset, made_new=False)
            repair_skips(part._ex_iterable)
        else:
            part = self.dataset.shard(num_shards=lanes, index=lane)
        if shuffle and not keeps_first_order(self.dataset._ex_iterable):
            part.set_epoch(epoch)
        return part

    def more_lanes(self, most: int) -> str:
        if self._undivided:
            return (
                f"Use lanes=1, which any number of ranks share: the rows of {self._undivided} "
                "depend on the number of shards. For more lanes, choose the files of each split "
                "with data_files= instead."
            )
        if most == 1 and has_node(self.dataset._ex_iterable, ("BufferShuffled",)):
            return (
                "datasets 5.0 makes one shard of a dataset that is shuffled: leave .shuffle() out, "
                "since streampack shuffles, or install datasets>=5.1."
            )
        return (
            f"The dataset has {most} shards: use lanes={most} or fewer (and as few ranks x "
            "workers), split its files further with `dataset.reshard()` where datasets has it, "
            "or convert the corpus with `streampack convert`."
        )
