"""BestFitCrop: every row full, filled by best fit and closed by a cropped document.

Steps:
  1. The overflow policy; under "split" a document becomes pieces of seq_len, each a row, and a
     remainder.
  2. Row by row: the largest document that fits the room is added, until none fits. Then the
     shortest document, which wastes least, fills the row exactly with its head. Ties by arrival.
  3. The cropped tail is dropped and counted; with ``keep_cropped=True`` it becomes a document of
     its own, placed after all others of its length.

In a window there are few documents to choose from, so step 2 looks ahead: once a row has
a document, the one or two that fill its room with the least crop close it, if they crop nothing or
if the largest that fits leaves no room for two more. Among equal pairs the one with the largest
document is used. Rows that crop least go first; rows that crop much wait for documents that fit
better, as long as the window allows.

Cost: O(documents), one compiled pass; in a window O(documents * distinct lengths). Pads only the
very last row. Every row begins with the first token of a document, except for pieces of documents
longer than a row, and with `keep_cropped`. Cropped tokens are lost, a large share where documents
are long; with `keep_cropped` documents are cut in two instead.

Source: steps 1 to 3 are the best-fit cropping of nanochat's data loader; the look-ahead is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel, kernel_of
from streampack.documents.blocks import ranges_of
from streampack.packing.bitmap import Bitmap, clear_bit, new_bitmap, next_set, previous_set, set_bit
from streampack.packing.choice import RowChoice
from streampack.packing.overflow import Overflow, limit_lengths, require_seq_len
from streampack.packing.packer import Packer
from streampack.packing.plan import Plan
from streampack.packing.request import Selection, WindowRequest
from streampack.packing.selection import first_rows


@dataclass(frozen=True, kw_only=True)
class BestFitCrop(Packer):
    """Fills every row by best fit and crops one document to close it.

    Args:
        seq_len: tokens per row.
        overflow: policy for documents longer than a row.
        keep_cropped: pack cropped tails as documents instead of dropping them.
        choice: `Balance` gives the batches of a step about equal work; None ignores costs.
    """

    seq_len: int
    overflow: Overflow = "split"
    keep_cropped: bool = False
    choice: RowChoice | None = None

    _revision: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "seq_len", require_seq_len(self.seq_len, self.overflow))
        object.__setattr__(self, "seq_lens", (self.seq_len,))

    @property
    def _max_tokens_per_row(self) -> int:
        """Two rows less one token, unless tails are kept: one missing token may crop a full row."""
        return self.seq_len if self.keep_cropped else 2 * self.seq_len - 1

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Pack the documents; `final` and `seed` have no effect, since nothing here is random."""
        return self._planned(lengths, closes=False)

    def plan_window(self, request: WindowRequest) -> Selection:
        """Plan the whole window with look-ahead, and select the rows that crop least."""
        plan = self._planned(request.lengths, closes=True)
        last = plan.row_offsets[1:] - 1
        document = plan.document[last]
        cropped = plan.dropped[document]
        ends = plan.stop[last] + cropped == request.lengths[document]
        return first_rows(plan, request, worse=np.where(ends, cropped, 0))

    def _planned(self, lengths: NDArray[np.int64], *, closes: bool) -> Plan:
        kept, dropped = limit_lengths(lengths, self.seq_len, self.overflow)
        # Rows filled by a single document come first.
        full = kept // self.seq_len
        whole = np.repeat(np.arange(len(kept)), full)
        begin = ranges_of(np.zeros_like(full), full) * self.seq_len
        columns = _crop(kept, self.seq_len, self.keep_cropped, closes, dropped)
        row_offsets, document, start, stop = columns
        return Plan.plain(
            np.concatenate([np.arange(len(whole)), row_offsets + len(whole)]),
            self.seq_len,
            np.concatenate([whole, document]),
            np.concatenate([begin, start]),
            np.concatenate([begin + self.seq_len, stop]),
            dropped,
        )

    def describe(self) -> dict[str, Any]:
        """Return class, parameters and algorithm revision."""
        return self._described("seq_len", "overflow", "keep_cropped")


class _Queues(NamedTuple):
    """Queues of documents by remaining length, in order of arrival, and a bitmap of used queues.

    `first` and `last` have one entry per queue, `following` one per document; -1 ends a queue.
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    following: NDArray[np.int64]
    filled: Bitmap


@kernel_of(lambda lengths, *_: 40 * lengths.size)
def _crop(
    lengths: NDArray[np.int64],
    seq_len: int,
    keep_cropped: bool,
    closes: bool,
    dropped: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Pack the remainders of documents, below seq_len; add cropped tokens to `dropped`.

    Returns row offsets, and document, start and stop per segment.
    """
    remainders = lengths % seq_len
    # Every row but the last is full, and every segment ends a document or fills a row.
    bound = remainders.sum() // seq_len + 1
    row_offsets = np.zeros(bound + 1, dtype=np.int64)
    document = np.empty(len(lengths) + bound, dtype=np.int64)
    start = np.empty(len(document), dtype=np.int64)
    stop = np.empty(len(document), dtype=np.int64)
    rows = k = 0
    queues = _Queues(
        np.full(seq_len, -1, dtype=np.int64),
        np.full(seq_len, -1, dtype=np.int64),
        np.full(len(lengths), -1, dtype=np.int64),
        new_bitmap(seq_len),
    )
    for i in range(len(lengths)):
        if remainders[i]:
            _enqueue(queues, remainders[i], i)
    room = seq_len
    closing = 0  # the length of a document that was chosen together with the one before
    while True:
        if closing > 0:
            size, closing = closing, 0
        elif closes and room < seq_len:
            size, closing = _least_waste(queues, room)
        else:
            size = previous_set(queues.filled, min(room, seq_len - 1))
            if size < 0:
                size = next_set(queues.filled, 1)
        if size < 0:
            break
        i = queues.first[size]
        queues.first[size] = queues.following[i]
        if queues.first[size] < 0:
            clear_bit(queues.filled, size)
        taken = min(size, room)
        document[k] = i
        start[k] = lengths[i] - size
        stop[k] = start[k] + taken
        k += 1
        if taken < size:
            if keep_cropped:
                _enqueue(queues, size - taken, i)
            else:
                dropped[i] += size - taken
        room -= taken
        if room == 0:
            rows += 1
            row_offsets[rows] = k
            room = seq_len
    if room < seq_len:
        rows += 1
        row_offsets[rows] = k
    return row_offsets[: rows + 1], document[:k], start[:k], stop[:k]


@kernel
def _least_waste(queues: _Queues, room: int) -> tuple[int, int]:
    """Return the next length to place in a row with this room, or -1, and the one to follow it.

    The second is 0 if the caller has to search for it once the first is placed.
    """
    filled = queues.filled
    shortest = next_set(filled, 1)
    largest = previous_set(filled, room)
    size, closing = next_set(filled, room), 0
    if largest < 0 or size == room:
        return size, 0
    waste = size - room if size >= 0 else room
    a = largest
    while 2 * a >= room and waste > 0:  # pairs, the longer one first; a shorter one closes the row
        b = next_set(filled, room - a)
        if b == a and queues.following[queues.first[a]] < 0:
            b = -1
        if 0 <= b <= a and a + b - room < waste:
            size, closing, waste = a, b, a + b - room
        a = previous_set(filled, a - 1)
    if size < 0 or (waste > 0 and largest + 2 * shortest <= room):
        return largest, 0
    return size, closing


@kernel
def _enqueue(queues: _Queues, size: int, i: int) -> None:
    """Put document i after the others of its size."""
    queues.following[i] = -1
    if queues.first[size] < 0:
        queues.first[size] = i
        set_bit(queues.filled, size)
    else:
        queues.following[queues.last[size]] = i
    queues.last[size] = i
