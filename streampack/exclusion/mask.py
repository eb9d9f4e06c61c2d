"""Mask: documents that a run reads and does not deliver.

A masked document keeps its serial, its place in its block and the length of the block, because it
is left out between the stream of its lane and the window, after documents are shuffled, mixed,
ordered and numbered. So the plans of a run do not depend on documents that are masked later, and
states that were saved before go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.exclusion.around import AroundStream
from streampack.exclusion.lookup import positions_in
from streampack.lane.config import LaneConfig
from streampack.sources.base import Source
from streampack.streams.base import LaneStream

#: Key of a lane's state: documents and tokens that were masked in its window when it was resumed.
MASKED = "masked"

#: Indices of documents by the indices of their source and shard, as in `Documents.origin`.
Places = Mapping[tuple[int, int], NDArray[np.int64]]


@runtime_checkable
class DeletedRows(Protocol):
    """A source with rows that are not delivered; its `_leaves` contain "exclude"."""

    def _deleted_rows(self) -> Mapping[int, NDArray[np.int64]]:
        """Return the indices (K,) int64 of these documents by the index of their shard."""


def deleted_rows(source: Source) -> dict[tuple[int, int], NDArray[np.int64]]:
    """Return the places of the deleted rows of all tables in a source."""
    parts = enumerate(part._inner for part in source._parts.values())
    return {
        (number, shard): rows
        for number, part in parts
        if isinstance(part, DeletedRows)
        for shard, rows in part._deleted_rows().items()
    }


def merged(*places: Places) -> dict[tuple[int, int], NDArray[np.int64]]:
    """Return all of these places."""
    indices: dict[tuple[int, int], list[NDArray[np.int64]]] = {}
    for each in places:
        for place, index in each.items():
            indices.setdefault(place, []).append(index)
    return {place: np.concatenate(parts) for place, parts in indices.items()}


class Mask:
    """The documents that a run does not deliver; put around the stream of every lane.

    Args:
        places: places of documents.

    Attributes:
        places: the same, each (K,) int64 sorted.
    """

    def __init__(self, places: Places) -> None:
        self.places = {place: np.unique(index) for place, index in places.items()}
        # Places that were met while reading, in this process. Threads share and never clear them.
        self._met: dict[tuple[int, int], set[int]] = {}

    def add(self, source: int, origin: NDArray[np.void]) -> None:
        """Mask documents of these origins (N,) of the source with this index."""
        for shard, index in zip(origin["shard"].tolist(), origin["index"].tolist(), strict=True):
            self._met.setdefault((source, shard), set()).add(index)

    def of_source(self, number: int) -> Mask:
        """Return a mask with the places of one source, for a run over this source alone."""
        places = self.places.items()
        return Mask({(0, shard): index for (source, shard), index in places if source == number})

    def hits(self, origin: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return where documents of these origins (N,) are masked, (N,) bool."""
        hits = np.zeros(len(origin), dtype=np.bool_)
        if not len(origin) or not (self.places or self._met):
            return hits
        # One word has source and shard, the next one the index.
        words = np.ascontiguousarray(origin).view("<i8").reshape(len(origin), -1)
        places = words[:, 0]
        alike = bool((places == places[0]).all())  # most blocks are of one shard
        for place in (places[:1] if alike else np.unique(places)).tolist():
            key = place & 0xFFFFFFFF, place >> 32
            known, met = self.places.get(key), self._met.get(key)
            if known is None and met is None:
                continue
            here = slice(None) if alike else np.flatnonzero(places == place)
            index = words[here, 1]
            if known is not None:
                hits[here] |= positions_in(known, index) >= 0
            if met is not None:
                hits[here] |= np.fromiter(map(met.__contains__, index.tolist()), bool, len(index))
        return hits

    def __call__(self, stream: LaneStream, state: Mapping[str, Any] | None) -> LaneStream:
        """Return the stream without masked documents; see `streams.base.Wrapper`."""
        return MaskedStream(stream, self, (state or {}).get(MASKED, (0, 0)))


class MaskedStream(AroundStream):
    """The documents of another stream that are not masked, with their serials.

    Args:
        inner: the stream.
        mask: documents that are left out, and counted.
        before: documents and tokens to count before the first document.

    Raises (while reading):
        ConfigError: every document of an epoch is masked, and epochs never end.
    """

    def __init__(self, inner: LaneStream, mask: Mask, before: Iterable[int]) -> None:
        super().__init__(inner)
        self._mask = mask
        self._before = tuple(before)
        self._block: Documents | None = None  # block of `inner` that was looked at
        self._kept: Documents | None = None  # the documents of it that are not masked
        self._index: NDArray[np.int64] | None = None  # their indices in it; None if all are
        self._hits = np.zeros(0, dtype=np.bool_)  # where documents of it are masked
        self._empty_since: Any = None  # epoch since which all documents were masked

    def begin_round(self, step: int, *, again: bool = False) -> None:
        super().begin_round(step, again=again)
        self._count(*self._before)
        self._before = (0, 0)

    def peek(self) -> Documents | None:
        while (block := self.inner.peek()) is not None:
            if block is self._block:
                return self._kept
            hits = self._masked(block)
            if hits.all():
                self._refuse_endless()
                self._consume(block, hits)
                continue
            self._block = self._kept = block
            self._index = self._empty_since = None
            if hits.any():
                self._index, self._hits = np.flatnonzero(~hits), hits
                self._kept = block.take(self._index)
            return self._kept
        return None

    def serials(self, count: int) -> NDArray[np.int64]:
        if self._index is None:
            return super().serials(count)
        index = self._index[:count]
        serials: NDArray[np.int64] = self.inner.serials(int(index[-1]) + 1)[index]
        return serials

    def consume(self, count: int) -> None:
        block, kept, index, hits = self._block, self._kept, self._index, self._hits
        if not count:
            return
        assert block is not None
        assert kept is not None
        until = count
        if index is None:
            self._step_over(count)
        else:
            until = int(index[count]) if count < len(index) else len(block)
            self._consume(block, hits[:until])
            index, hits = index[count:] - until, hits[until:]
        if until < len(block):  # neither looked at nor copied again
            self._block, self._kept = self.inner.peek(), kept[count:]
            self._index, self._hits = index, hits

    def _consume(self, block: Documents, hits: NDArray[np.bool_]) -> None:
        """Step over the first documents of a block, (N,), and count the masked ones."""
        self._count(int(hits.sum()), int(block.lengths[: len(hits)][hits].sum()))
        self._index = None
        self._step_over(len(hits))

    def _step_over(self, count: int) -> None:
        """Step over the first documents of `inner`, masked or not."""
        super().consume(count)

    def _masked(self, block: Documents) -> NDArray[np.bool_]:
        """Return where documents of the next block of `inner` are masked, (N,) bool."""
        return self._mask.hits(block.origin)

    def _count(self, documents: int, tokens: int) -> None:
        self.skips.counts.excluded += documents
        self.skips.counts.excluded_tokens += tokens

    def _refuse_endless(self) -> None:
        epoch = self.epoch
        self._empty_since = epoch if self._empty_since is None else self._empty_since
        if epoch > self._empty_since + 1 and _is_endless(self.inner):
            raise self._endless(epoch - 1)

    def _endless(self, epoch: int) -> ConfigError:
        """Return the error for an epoch of which every document is masked."""
        return ConfigError(
            f"A lane must keep a document, but all of epoch {epoch} are taken out.",
            "Leave out exclude=, or use fewer lanes.",
            setting="exclude",
        )


def _is_endless(stream: Any) -> bool:
    """Return whether the run of a lane's stream has no end."""
    while not hasattr(stream, "_config"):
        if hasattr(stream, "_members"):  # a source of a mixture may be endless by itself
            return bool(stream._endless)
        stream = getattr(stream, "inner", None) or stream._stream
    return stream._config.epochs is None


def mask_of(config: LaneConfig) -> Mask:
    """Return the mask of a run, which masks nothing if the run has none."""
    masks = (wrapper for wrapper in config.wrappers if isinstance(wrapper, Mask))
    return next(masks, Mask({}))
