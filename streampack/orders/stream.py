"""The ordering window: between a lane's document stream and its packing window."""

from __future__ import annotations

import base64
import json
import logging
import os
import zlib
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.errors import ConfigError, StateError, StorageError
from streampack.ordering import DocumentOrder
from streampack.packers.concat import Concat
from streampack.packing.packer import Packer
from streampack.packing.rng import derive_seed
from streampack.sources.base import Source
from streampack.streams.base import LaneStream, Opening, StreamPosition
from streampack.streams.lane_stream import open_unordered
from streampack.streams.stream import DocumentStream
from streampack.window.packed_rows import PackedRows

if TYPE_CHECKING:
    from streampack.mixtures.stream import MixedStream
    from streampack.stages.recipe import Recipe


def write_duplicates(
    folder: Path,
    lane: int,
    window: int,
    documents: Documents,
    dropped: NDArray[np.int64],
    like: NDArray[np.int64] | None,
    source: Source,
) -> None:
    """Write the `dropped` (D,) documents of a window, their tokens, and the original in `like`.

    Raises:
        StorageError: the file cannot be written.
    """
    lines = []
    for d, i in enumerate(dropped.tolist()):
        record = {
            "document": source.document_name(documents.origin[i]),
            "tokens": int(documents.offsets[i + 1] - documents.offsets[i]),
        }
        if like is not None:
            record["like"] = source.document_name(documents.origin[like[d]])
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    path = folder / f"lane-{lane:05}-window-{window:06}.jsonl"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text("".join(lines), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}.",
            "Make room or pass another duplicates_folder; None writes no file.",
            setting="duplicates_folder",
            path=str(path),
        ) from error


_BEGINNING: dict[str, Any] = {"offset": 0, "number": 0, "windows": 0, "orders": []}

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Place:
    """Position of the start of an ordering window.

    Attributes:
        number: index of the window in the lane, from 0.
        serial: index of its first document.
        position: position of the inner stream, at or before the window.
        offset: documents between `position` and the window.
        count: documents in the window.
        order: (M,) order of M of the `count` documents; None before they are read.
        change: batch and weights of the change by which a mixture draws it, and 1 if they hold
            after its first document, or 0; None if none was new.
        begun: True once its documents were asked for.
    """

    number: int
    serial: int
    position: StreamPosition
    offset: int
    count: int = 0
    order: NDArray[np.int64] | None = None
    change: list[Any] | None = None
    begun: bool = False


class OrderedStream(LaneStream):
    """The documents of another stream, in order.

    Args:
        stream: inner stream, opened at ``inner_position(position)`` if there is a position.
        opening: `config.order` orders the documents of a window.

    Raises (while reading):
        StateError: a saved order does not fit the documents.
        ConfigError: the embedder returned an invalid result.
    """

    def __init__(self, stream: DocumentStream | MixedStream, opening: Opening) -> None:
        super().__init__(opening)
        config, position = opening.config, opening.position
        assert config.order is not None
        self._stream = stream
        self._order = config.order
        self._source = config.source
        self._lane = opening.lane
        self._seed = derive_seed(config.seed, 3, opening.lane)
        self._times = opening.times
        saved: dict[str, Any] = position.cursor if position else _BEGINNING
        # Counted and named before the state was saved:
        self._known: int = saved["windows"]
        self._orders: deque[list[Any]] = deque(saved["orders"])
        self._changes: deque[Any] = deque(
            saved.get("changes", ())
        )  # of windows that the state knew
        self._step = 0
        self._unread: int = saved["offset"]
        number = saved["number"]
        self._places = deque([_Place(number, self.serial, stream.position_before(0), self._unread)])

    @property
    def epoch(self) -> int:
        """Epoch of the documents that are read next."""
        return self._stream.epoch

    @staticmethod
    def inner_position(position: StreamPosition | None) -> StreamPosition | None:
        """Return the start position of the inner stream."""
        return None if position is None else StreamPosition(0, position.cursor["at"])

    def position_before(self, serial: int) -> StreamPosition:
        """Return the start of the ordering window of document `serial`; drop earlier positions."""
        while len(self._places) > 1 and self._places[1].serial <= serial:
            self._places.popleft()
        first = self._places[0]
        read = [place for place in self._places if place.order is not None]
        orders = [] if self._order.exact else [_encode(place) for place in read]
        changes = [place.change for place in self._places]
        return StreamPosition(
            first.serial,
            {
                "at": first.position.cursor,
                "offset": first.offset,
                "number": first.number,
                "windows": len(read),
                "orders": orders,
                **({"changes": changes} if any(changes) else {}),
            },
        )

    def begin_round(self, step: int, *, again: bool = False) -> None:
        self._step = 0 if again else step

    def _draw_window_by(self, place: _Place) -> None:
        """Draw a new window by the weights in force, or a reread one as before."""
        stream: Any = self._stream
        if not hasattr(stream, "draw_by"):
            return
        if self._changes and not place.begun:
            place.change = self._changes.popleft()
        place.begun = True
        if place.change is None and not self._known:
            change = stream.change_for(self._step)
            place.change = None if change is None else [*change, int(self._step > 0)]
        if place.change is not None:
            batch, weights, after = place.change
            stream.draw_by((batch, weights), stream.serial + after)

    def completed(self, batches: list[PackedRows]) -> list[PackedRows]:
        return self._stream.completed(batches)

    def _next_documents(self) -> Documents | None:
        """Return the next ordering window."""
        stream = self._stream
        self._unread = stream.step_over(self._unread)
        if self._places[-1].order is not None:
            position = stream.position_before(stream.serial)
            number = self._places[-1].number + 1
            self._places.append(
                _Place(number, self.serial, position, stream.serial - position.serial)
            )
        self._draw_window_by(self._places[-1])
        parts: list[Documents] = []
        wanted = self._window_documents(self._places[-1].number)
        epoch: int | None = None
        while wanted and (documents := stream.peek()) is not None:
            if epoch is not None and stream.epoch != epoch:
                break
            epoch = stream.epoch
            parts.append(documents[:wanted])
            wanted -= len(parts[-1])
            stream.consume(len(parts[-1]))
        if not parts:
            return None
        with self._times.measure("order_s"):
            return self._ordered(Documents.joined(parts), self._places[-1])

    def _window_documents(self, number: int) -> int:
        """Return the size in documents of the lane's window `number`, counted from 0."""
        full = self._order.order_window_documents
        first = getattr(self._order, "first_window_documents", full)
        return min(full, first << min(number, 40))

    def _ordered(self, documents: Documents, place: _Place) -> Documents:
        """Return the documents of a window in order, and store the order in `place`."""
        if self._orders:
            order, dropped = self._saved_order(documents), np.zeros(0, dtype=np.int64)
        else:
            seed = derive_seed(self._seed, place.serial)
            order, dropped, *like = self._order.order(documents, seed=seed)
            folder = getattr(self._order, "duplicates_folder", None)
            if len(dropped) and folder is not None:
                write_duplicates(
                    Path(folder), self._lane, place.number, documents, dropped,
                    like[0] if like else None, self._source,
                )  # fmt: skip
        place.count, place.order = len(documents), order
        if self._known:
            self._known -= 1
        elif len(dropped):
            tokens = int(documents.lengths[dropped].sum())
            self.skips.counts.duplicates += len(dropped)
            self.skips.counts.duplicate_tokens += tokens
            logger.info(
                "dropped %d near-duplicates of %d tokens among %d documents of %d",
                len(dropped), tokens, len(documents), documents.num_tokens,
            )  # fmt: skip
        return documents.take(order)

    def _saved_order(self, documents: Documents) -> NDArray[np.int64]:
        count, encoded = self._orders.popleft()
        if count != len(documents):
            raise StateError(
                f"An ordering window had {count} documents when the state was saved and has "
                f"{len(documents)} now.",
                "Resume with the same data and code, or start a new run.",
            )
        raw = zlib.decompress(base64.b64decode(encoded))
        return np.frombuffer(raw, dtype="<u4").astype(np.int64)


def _encode(place: _Place) -> list[Any]:
    """Encode the number of documents and their order, JSON-able."""
    assert place.order is not None
    raw = zlib.compress(place.order.astype("<u4").tobytes())
    return [place.count, base64.b64encode(raw).decode()]


def open_ordered(opening: Opening) -> OrderedStream:
    """Open the documents of the source's stream in order; see `open_stream`."""
    inner = replace(opening, position=OrderedStream.inner_position(opening.position))
    return OrderedStream(open_unordered(inner), opening)


def add(recipe: Recipe, order: Any) -> None:
    """Choose a packer that keeps related documents together, or check the user's packer.

    Raises:
        ConfigError: `order` is not an order, or the packer places documents by length.
    """
    if not isinstance(order, DocumentOrder):
        raise ConfigError(
            f"order must be a DocumentOrder, got {order!r:.80}.",
            "Pass order=SimilarityOrder() or an object with the same attributes, or leave it out.",
            setting="order",
        )
    if not getattr(order, "related", True):
        return
    recipe.usual = partial(_usual_packer, order)
    packer = recipe.packer
    if not packer.keeps_order:
        raise ConfigError(
            f"{type(packer).__name__} puts documents into rows by their lengths, "
            f"which separates the documents that {type(order).__name__} puts side by side.",
            f"Use packer=Concat(seq_len={packer.seq_lens[-1]}), or leave out the order.",
            setting="order",
        )
    if recipe.attention == "document":
        logger.warning(
            '%s puts related documents into one row, and attention="document" isolates '
            'them. Pass attention="row" too, or leave out the order.',
            type(order).__name__,
        )


def _usual_packer(order: DocumentOrder, recipe: Recipe) -> Packer:
    """Return the packer of documents in their order, cut at the ends of rows."""
    seq_len = recipe.seq_len or 0
    if recipe.one_overflow() != "split":
        raise ConfigError(
            f"{type(order).__name__} requires a packer that cuts documents where rows end.",
            f"Pass packer=Concat(seq_len={seq_len}) to have them cut, or leave out the order.",
            setting="order",
        )
    return Concat(seq_len=seq_len)
