"""BestFitCrop: every row full, filled by best fit and closed by a cropped document.

Steps:
  1. The overflow policy; under "split" a document becomes pieces of seq_len, each a row, and a
     remainder.
  2. Row by row: the largest document that fits the room goes in, until none fits. Then the
     shortest one, whose crop wastes least, fills the row exactly with its head. Ties by arrival.
  3. What a crop cuts off is dropped and counted; with ``keep_cropped=True`` it counts as a document
     from then on, which comes after all others of its length.

Cost: O(documents), one compiled pass. Pads only the very last row. Every row begins with the first
token of a document, except for pieces of documents longer than a row, and with `keep_cropped`.
Throws away what it crops, which is a large share where documents are long, or cuts documents in two
with `keep_cropped`.

Rows get worse as fewer documents are left to choose from, so a window gives out the first ones and
plans the rest again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.packing.arguments import require_seq_len
from streampack.packing.bitmap import clear_bit, new_bitmap, next_set, previous_set, set_bit
from streampack.packing.overflow import Overflow, limit_lengths
from streampack.packing.packer import Packer
from streampack.packing.plan import Plan
from streampack.packing.request import Selection, WindowRequest
from streampack.packing.selection import first_rows

__all__ = ["BestFitCrop"]


@dataclass(frozen=True, kw_only=True)
class BestFitCrop(Packer):
    """Best fit with cropping.

    Args:
        seq_len: tokens per row.
        overflow: what happens to documents longer than a row.
        keep_cropped: pack what is cropped off too, instead of dropping it.
    """

    seq_len: int
    overflow: Overflow = "split"
    keep_cropped: bool = False

    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "seq_len", require_seq_len(self.seq_len, self.overflow))
        object.__setattr__(self, "seq_lens", (self.seq_len,))

    @property
    def max_tokens_per_row(self) -> int:
        """A row that lacks one token may crop a document as long as a row."""
        return self.seq_len if self.keep_cropped else 2 * self.seq_len - 1

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Pack; neither `final` nor `seed` changes anything, for nothing here is random."""
        kept, dropped = limit_lengths(lengths, self.seq_len, self.overflow)
        row_offsets, document, start, stop = _crop(kept, self.seq_len, self.keep_cropped, dropped)
        return Plan.plain(row_offsets, self.seq_len, document, start, stop, dropped)

    def plan_window(self, request: WindowRequest) -> Selection:
        """Plan everything and take the first rows, which are the best."""
        plan = self.plan(request.lengths, final=request.final, seed=request.seed)
        return first_rows(plan, request)

    def describe(self) -> dict[str, Any]:
        """Class, parameters and algorithm revision."""
        return {
            "kind": "BestFitCrop",
            "revision": self.revision,
            "seq_len": self.seq_len,
            "overflow": self.overflow,
            "keep_cropped": self.keep_cropped,
        }


@kernel
def _crop(
    lengths: NDArray[np.int64], seq_len: int, keep_cropped: bool, dropped: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Row offsets, and document, start and stop per segment; adds what it crops to `dropped`."""
    tokens = lengths.sum()
    # Every row but the last is full, and every segment ends a document or fills a row.
    bound = tokens // seq_len + 1
    row_offsets = np.zeros(bound + 1, dtype=np.int64)
    document = np.empty(len(lengths) + bound, dtype=np.int64)
    start = np.empty(len(document), dtype=np.int64)
    stop = np.empty(len(document), dtype=np.int64)
    rows, k = 0, 0
    for i in range(len(lengths)):
        for piece in range(lengths[i] // seq_len):
            document[k] = i
            start[k] = piece * seq_len
            stop[k] = start[k] + seq_len
            k += 1
            rows += 1
            row_offsets[rows] = k
    # Queues of the remainders by length, in order of arrival, and a bitmap of those not empty.
    first = np.full(seq_len, -1, dtype=np.int64)
    last = np.full(seq_len, -1, dtype=np.int64)
    following = np.full(len(lengths), -1, dtype=np.int64)
    words, groups = new_bitmap(seq_len)
    rest = lengths % seq_len
    for i in range(len(lengths)):
        if rest[i]:
            _enqueue(first, last, following, words, groups, rest[i], i)
    room = seq_len
    while True:
        size = previous_set(words, groups, min(room, seq_len - 1))
        if size < 0:
            size = next_set(words, groups, 1)
            if size < 0:
                break
        i = first[size]
        first[size] = following[i]
        if first[size] < 0:
            clear_bit(words, groups, size)
        taken = min(size, room)
        document[k] = i
        start[k] = lengths[i] - size
        stop[k] = start[k] + taken
        k += 1
        if taken < size:
            if keep_cropped:
                _enqueue(first, last, following, words, groups, size - taken, i)
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
def _enqueue(
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    following: NDArray[np.int64],
    words: NDArray[np.uint64],
    groups: NDArray[np.uint64],
    size: int,
    i: int,
) -> None:
    """Put document i after the others of its size."""
    following[i] = -1
    if first[size] < 0:
        first[size] = i
        set_bit(words, groups, size)
    else:
        following[last[size]] = i
    last[size] = i
