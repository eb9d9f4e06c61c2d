"""The items that a lane gives, and its state: the contents of its window at the start of a round.

`RoundStart.state` writes the state and `SavedEntries` reads it while the documents are reread. It
records the waiting documents, how far each is delivered and since which round it waits: a few
kilobytes for ten thousand documents, and no tokens. Only `emitted` changes from batch to batch. The
checksum of the run's state covers all of it.

The window's documents are columns of small numbers, mostly zero or constant, in one text. Steps:

  1. Each number takes as many bytes as the largest of all needs. The lowest byte of all numbers
     comes first, column by column, then the next byte of all: equal bytes come together.
  2. zlib, with run lengths and Huffman codes only (`Z_RLE`). Looking for longer matches takes up
     to three times as long and saves little or nothing.
  3. base64.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.cached import cached_property
from streampack.deals.report_channel import encode_reports
from streampack.documents.blocks import Documents
from streampack.errors import StateError
from streampack.metrics import Metrics
from streampack.streams.base import StreamPosition
from streampack.window.entries import Entries
from streampack.window.packed_rows import PackedRows
from streampack.window.window import Window

_COLUMNS = 5  # columns stored by `RoundStart.state`


@dataclass(frozen=True, eq=False)
class RoundStart:
    """A lane at the start of a round, as its state describes it.

    Attributes:
        lane: index of the lane.
        number: index of the round.
        step: batches that the lane had given before the round.
        final: True if no documents follow the window; None if the round has still to read.
        position: stream position to reread the window's documents from.
        admitted: documents after `position` that the window has taken, wholly or in part.
        continued: True if the last of them is held in part.
        entries: entries of the window.
        skipped: counts of broken documents and shards since the beginning.
        reports: reports of the lane for deals, up to the last batch of the round; see
            `LaneReports`.
        reported_deal: index of the last deal that the lane has reported for.
    """

    lane: int
    number: int
    step: int
    final: bool | None
    position: StreamPosition
    admitted: int
    continued: bool
    entries: Entries
    skipped: int
    reports: list[list[int]]
    reported_deal: int

    def state(self, emitted: int) -> dict[str, Any]:
        """Return the JSON-able state after `emitted` batches of this round."""
        return {**self._coordinates, "emitted": emitted}

    @cached_property
    def _coordinates(self) -> dict[str, Any]:
        entries = self.entries
        columns = np.stack(
            [
                np.diff(entries.serial, prepend=self.position.serial - 1),
                entries.start,
                entries.repeated,
                entries.cut,
                np.diff(entries.arrived, append=self.number),
            ]
        )
        return {
            "lane": self.lane,
            "round": self.number,
            "step": self.step,
            "final": self.final,
            "cursor": self.position.cursor,
            "serial": self.position.serial,
            "admitted": self.admitted,
            "documents": len(entries),
            "entries": encode_columns(columns),
            "held": int(entries.held[-1]) if self.continued else None,
            "digest": entries.digest(),
            "skipped": self.skipped,
            "reports": encode_reports(self.reports),
            "reported_deal": self.reported_deal,
        }


def encode_columns(columns: NDArray[np.int64]) -> str:
    """Encode (C, N) int64 columns as text; values are at least 0, sums per column at most 2**53."""
    width = max((int(columns.max(initial=0)).bit_length() + 7) // 8, 1)
    # `astype` keeps the lowest byte.
    planes = [(columns >> 8 * plane).astype(np.uint8).tobytes() for plane in range(width)]
    packer = zlib.compressobj(strategy=zlib.Z_RLE)
    return base64.b64encode(packer.compress(b"".join(planes)) + packer.flush()).decode()


def decode_columns(text: str, columns: int, count: int) -> NDArray[np.int64]:
    """Decode the (columns, count) int64 values that `encode_columns` wrote."""
    data = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
    values = np.zeros((columns, count), dtype=np.int64)
    for number, plane in enumerate(data.reshape(-1, columns, count) if count else ()):
        values |= plane.astype(np.int64) << 8 * number
    return values


@dataclass(slots=True)
class SavedEntries:
    """The window's documents in a state, admitted while they are reread.

    `entries` has five columns, with a value for each of the window's N entries: `step`, the
    increase of the serial over the entry before (0: one more part of the same document); `start`,
    `repeated` and `cut` as in `Entries`; `waited`, rounds between its arrival and the next entry's
    arrival, or this round for the last entry.

    Raises:
        StateError: the documents differ from the documents of the state.
    """

    state: Mapping[str, Any]
    window: Window
    read: int = 0
    _place: NDArray[np.int64] = field(init=False)
    _parts: NDArray[np.int64] = field(init=False)
    _arrived: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        columns = decode_columns(self.state["entries"], _COLUMNS, self.state["documents"])
        step, waited = columns[0], columns[-1]
        self._place = np.cumsum(step) - 1
        self._parts = columns[1:-1]
        self._arrived = self.state["round"] - np.cumsum(waited[::-1])[::-1]

    @property
    def admitted(self) -> int:
        """Number of documents to be read."""
        return int(self.state["admitted"])

    @property
    def continued(self) -> bool:
        """True if the last document is held in part."""
        return self.state["held"] is not None

    def take(self, documents: Documents, serial: int) -> None:
        """Admit the next documents of the stream: at most the number still to be read."""
        first, stop = np.searchsorted(self._place, [self.read, self.read + len(documents)])
        here = self._place[first:stop] - self.read
        self.read += len(documents)
        kept = documents.take(here)
        part = slice(first, stop)
        start, repeated, cut = self._parts[:, part]
        last = self.continued and self.read == self.admitted
        most = np.maximum(self.window.tokens_to_place(kept, cut) - start, 0)
        held = most.copy()
        if last:
            held[-1] = self.state["held"]
        short = start + cut > kept.lengths
        if (short | (held > most) | (repeated > held)).any():
            raise StateError(
                f"A document of lane {self.state['lane']} is shorter than its delivered part in "
                "the saved state.",
                "Resume with the same data and code, or start a new run.",
            )
        entries = Entries.of(
            serial=serial + here,
            start=start,
            held=held,
            length=kept.lengths - cut,
            arrived=self._arrived[part],
            repeated=repeated,
            cut=cut,
            origin=kept.origin,
        )
        self.window.restore(kept, entries, continued=last)


class LaneBatch(NamedTuple):
    """One batch of a lane.

    Attributes:
        lane: index of the lane.
        step: index of the batch in the lane.
        rows: the batch in compact form.
        start, emitted: the lane's state is ``start.state(emitted)`` once this batch is consumed;
            `start` is the start of the batch's round.
        metrics: losses and times since the previous batch that the rows do not contain; None if
            there are none, as for all but the first batch of a round.
        has_next: True if the lane has another batch. The state of the last batch is the end's.
    """

    lane: int
    step: int
    rows: PackedRows
    start: RoundStart | SavedStart
    emitted: int
    metrics: Metrics | None
    has_next: bool = True


class LaneEnd(NamedTuple):
    """The end of a lane, if no batch carries it.

    Attributes:
        lane: index of the lane.
        step: batches that the lane has given.
        start, emitted: the lane's state is ``start.state(emitted)``.
        metrics: losses and times since the last batch.
    """

    lane: int
    step: int
    start: RoundStart | SavedStart
    emitted: int
    metrics: Metrics

    @property
    def has_next(self) -> bool:
        """False, as for a lane's last batch."""
        return False


class SavedStart(NamedTuple):
    """The start of a round as a state, for another process.

    Attributes:
        start: state of the lane before any batch of the round.
    """

    start: dict[str, Any]

    def state(self, emitted: int) -> dict[str, Any]:
        """Return the state after `emitted` batches, like `RoundStart.state`."""
        return {**self.start, "emitted": emitted}
