"""First-fit-decreasing and best-fit-decreasing.

Steps:
  1. The overflow policy; under "split" a document becomes pieces of seq_len and a remainder.
  2. Pieces in order of decreasing length, ties by arrival (a counting sort where lengths are
     few against documents).
  3. Each piece goes into a bin of ``seq_len + extra_capacity``: first-fit takes the earliest opened
     bin with room, best-fit the bin left with least room, ties to the earliest opened. With
     ``align`` a piece occupies a multiple of it, padding included.
  4. A bin is a row. Tokens beyond seq_len, in placement order, are dropped and counted.

Cost: O(documents) and the greedy kernel (`fit`), compiled: about 15 ns per document of web text for
best-fit and 35 for first-fit, most of it in the kernel.
Keeps every token with ``extra_capacity=0``. With more, it makes fewer rows and drops the ends of
some documents.

Sources: Ding et al., "Fewer Truncations Improve Language Modeling" (2024) is BestFitDecreasing
with "split"; "Improving Continual Pre-training Through Seamless Data Packing" (2025) uses
``extra_capacity`` (in its BFD-m, and in the second stage of `Seamless`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.arguments import whole_number
from streampack.documents.blocks import NO_FIELDS, Fields
from streampack.packing.choice import RowChoice
from streampack.packing.fit import greedy_fit
from streampack.packing.overflow import Overflow, limit_lengths, require_align, require_seq_len
from streampack.packing.packer import Packer, check_rules, row_limits
from streampack.packing.plan import Plan
from streampack.packing.row_limits import RowLimits

MOST_KEPT_BYTES = 8 << 20  # about 200,000 pieces; a larger buffer is freed after its plan


class _Kept(threading.local):
    """Working memory of one thread, kept between plans: page faults take longer than a plan.

    It is uninitialised, used within one kernel call, and never part of a result.
    """

    words: NDArray[np.int64] = np.empty(0, dtype=np.int64)


_kept = _Kept()


def scratch_words(count: int) -> NDArray[np.int64]:
    """Return (count or more,) int64 working memory, valid until this thread's next call."""
    words = _kept.words
    if len(words) < count:
        words = np.empty(count + count // 4, dtype=np.int64)
        if words.nbytes <= MOST_KEPT_BYTES:
            _kept.words = words
    return words


@dataclass(frozen=True, kw_only=True)
class Decreasing(Packer):
    """Base of both strategies; the module's docstring has the steps.

    Args:
        seq_len: tokens per row.
        overflow: policy for documents longer than a row.
        extra_capacity: tokens a bin may hold beyond seq_len; they are dropped. More of them give
            fewer rows and less padding, and drop the ends of more documents.
        protect_short: refuse a placement that would drop a whole piece.
        align: pad every piece to a multiple of this inside its row, as context parallelism requires
            (``2 * cp_size``); the filling counts as padding. Of several requirements, as
            ``(2 * cp_size, 16)``, the least common multiple is used.
        limits: further limits of a row: `Capacity` by fields such as patches, `Separate` by a key.
        choice: `Balance` gives the batches of a step about equal work; None ignores costs.
    """

    seq_len: int
    overflow: Overflow = "split"
    extra_capacity: int = 0
    protect_short: bool = False
    align: int | Sequence[int] = 1
    limits: Sequence[RowLimits] = ()
    choice: RowChoice | None = None

    keeps_whole = True
    best: ClassVar[bool]

    def __post_init__(self) -> None:
        object.__setattr__(self, "seq_len", require_seq_len(self.seq_len, self.overflow))
        extra = whole_number("extra_capacity", self.extra_capacity, least=0, most=self.seq_len - 1)
        object.__setattr__(self, "extra_capacity", extra)
        object.__setattr__(self, "align", require_align(self.align, self.seq_len, extra))
        object.__setattr__(self, "seq_lens", (self.seq_len,))
        check_rules(self)
        object.__setattr__(self, "limits", tuple(self.limits))

    @property
    def multiple(self) -> int:
        """`align` as an int, which `__post_init__` has made it."""
        return cast(int, self.align)

    @property
    def _max_tokens_per_row(self) -> int:
        """Capacity of a bin, in tokens."""
        return self.seq_len + self.extra_capacity

    def plan(
        self, lengths: NDArray[np.int64], *, final: bool, seed: int, weights: Fields = NO_FIELDS
    ) -> Plan:
        """Pack the documents; `final` and `seed` have no effect, since nothing here is random.

        `weights` maps document fields to their values (N,); see `Packer`.
        """
        return row_limits(self).plan(self, lengths, weights)

    def plan_tokens(self, lengths: NDArray[np.int64]) -> Plan:
        """Pack documents of these lengths (N,) by the steps of the module."""
        kept, dropped = limit_lengths(lengths, self.seq_len, self.overflow)
        # One kernel fills the arrays, because each array that a kernel returns costs microseconds.
        pieces = len(kept) + int(kept.sum()) // self.seq_len
        # They share one block: numpy requests huge pages for it, which need few page faults.
        block = np.empty(6 * pieces + 1, dtype=np.int64)
        columns, row_offsets = block[: 5 * pieces].reshape(5, pieces), block[5 * pieces :]
        dropped_with = np.full(len(kept), -1, dtype=np.int64) if self.extra_capacity else None
        least_room = self.extra_capacity + 1 if self.protect_short else 0
        count, segments = _plan(
            kept,
            _Rule(self.seq_len, self._max_tokens_per_row, least_room, self.multiple),
            Placed(row_offsets, columns, dropped),
            _NONE if dropped_with is None else dropped_with,
            scratch_words(4 * pieces),
            None if self.best else np.empty(pieces, dtype=np.int32),
        )
        document, start, stop, overlap, gaps = columns[:, :segments]
        return Plan(
            row_offsets=row_offsets[: count + 1],
            seq_len=np.full(count, self.seq_len, dtype=np.int32),
            document=document,
            start=start,
            stop=stop,
            overlap=overlap,
            insert_eos=np.zeros(segments, dtype=np.bool_),
            pad_after=gaps,
            dropped=dropped,
            dropped_with=dropped_with,
        )

    def describe(self) -> dict[str, Any]:
        """Return class, parameters and revision; `align` and limits only if they are set."""
        names = ("seq_len", "overflow", "extra_capacity", "protect_short")
        return self._described(*names, if_set=("align",))


class FirstFitDecreasing(Decreasing):
    """Places the longest documents first, each into the earliest opened row with room."""

    best = False


class BestFitDecreasing(Decreasing):
    """Places the longest documents first, each into the fullest row with room. The default."""

    best = True


_NONE = np.zeros(0, dtype=np.int64)


class BinPieces(NamedTuple):
    """Pieces of documents in placement order, as columns (M,).

    Attributes:
        bins: bin of each piece; document, start, size: its document, its offset there, its tokens.
    """

    bins: NDArray[np.integer[Any]]
    document: NDArray[np.integer[Any]]
    start: NDArray[np.int64]
    size: NDArray[np.integer[Any]]


class Placed(NamedTuple):
    """Output arrays of `lay_out`.

    Attributes:
        row_offsets: (bins + 1 or more,) int64 offsets of the rows into the segments.
        columns: (3, M or more) int64, (document, start, stop) of the segments.
        dropped: (N,) int64, to which tokens cut off are added.
    """

    row_offsets: NDArray[np.int64]
    columns: NDArray[np.int64]
    dropped: NDArray[np.int64]


class _Rule(NamedTuple):
    """Parameters of placing pieces; see `greedy_fit`."""

    seq_len: int
    capacity: int
    least_room: int
    align: int


@kernel
def _plan(
    kept: NDArray[np.int64],
    rule: _Rule,
    placed: Placed,
    dropped_with: NDArray[np.int64],
    words: NDArray[np.int64],
    rooms: NDArray[np.int32] | None,
) -> tuple[int, int]:
    """Run steps 2 to 4 for lengths (N,): fill `placed`, return the numbers of rows and segments.

    `placed` has two further columns, overlap and padding. `dropped_with` is filled unless it is
    empty; `words` is working memory, 4 words per piece, and `rooms` that of `greedy_fit`.
    """
    seq_len, capacity, least_room, align = rule
    most = placed.columns.shape[1]  # upper bound of the number of pieces
    start = words[:most]
    narrow = words[most : 4 * most].view(np.int32)
    document, size, bins = narrow[:most], narrow[most : 2 * most], narrow[2 * most : 3 * most]
    links, used = narrow[3 * most : 5 * most], narrow[5 * most : 6 * most]
    count = decreasing_pieces(kept, seq_len, document, start, size)
    pieces = BinPieces(bins[:count], document[:count], start[:count], size[:count])
    count = greedy_fit(pieces.size, capacity, least_room, align, pieces.bins, links, rooms)
    if len(dropped_with):
        lost_with(pieces, count, seq_len, dropped_with)
    segments = lay_out(pieces, count, seq_len, used if capacity > seq_len else used[:0], placed)
    columns = placed.columns
    columns[3:, :segments] = 0
    if align > 1:
        for k in range(segments):
            columns[4, k] = (columns[1, k] - columns[2, k]) % align
    return count, segments


@kernel
def lost_with(pieces: BinPieces, count: int, seq_len: int, out: NDArray[np.int64]) -> None:
    """Set `out` (N,) to the bin in which a document's piece lies wholly beyond seq_len.

    A document has at most one such piece, its remainder: pieces of seq_len come first in a bin.
    """
    bins, document, _, size = pieces
    used = np.zeros(count, dtype=np.int64)
    for k in range(len(bins)):
        if used[bins[k]] >= seq_len:
            out[document[k]] = bins[k]
        used[bins[k]] += size[k]


@kernel
def decreasing_pieces(
    lengths: NDArray[np.int64],
    seq_len: int,
    document: NDArray[np.int32],
    start: NDArray[np.int64],
    size: NDArray[np.int32],
) -> int:
    """Write pieces by decreasing length, ties by arrival; return their number.

    Args:
        lengths: (N,) int64; seq_len: tokens of a whole piece.
        document, start, size: outputs with room for every piece: its document, its offset there
            and its tokens.
    """
    # Most documents are shorter than a row, which saves the division, the slow part of this loop.
    counting = len(lengths) * 16 >= seq_len  # a counting sort is slower for few documents
    # place[s] is first the number of remainders of size s, then the index of the next one.
    place = np.zeros(seq_len if counting else 0, dtype=np.int64)
    full = 0
    next_remainder = 0
    for i in range(len(lengths)):
        remainder = lengths[i]
        if remainder >= seq_len:
            for piece in range(remainder // seq_len):
                document[full] = i
                start[full] = piece * seq_len
                size[full] = seq_len
                full += 1
            remainder %= seq_len
        if remainder > 0:
            next_remainder += 1
            if counting:
                place[remainder] += 1
    if not counting:
        order = np.argsort(-(lengths % seq_len), kind="mergesort")
        for k in range(next_remainder):
            remainder = lengths[order[k]] % seq_len
            document[full + k] = order[k]
            size[full + k] = remainder
            start[full + k] = lengths[order[k]] - remainder
        return full + next_remainder
    start[full : full + next_remainder] = 0
    at = full
    for s in range(seq_len - 1, 0, -1):  # sizes descend, arrivals ascend
        count = place[s]
        place[s] = at
        size[at : at + count] = s
        at += count
    for i in range(len(lengths)):
        remainder = lengths[i]
        if remainder >= seq_len:
            remainder %= seq_len
        if remainder > 0:
            k = place[remainder]
            place[remainder] += 1
            document[k] = i
            if remainder < lengths[i]:
                start[k] = lengths[i] - remainder
    return full + next_remainder


@kernel
def lay_out(
    pieces: BinPieces, count: int, seq_len: int, used: NDArray[np.integer[Any]], placed: Placed
) -> int:
    """Write segments by row, in placement order, cut at seq_len; return their number.

    Args:
        pieces: pieces placed in `count` bins; `size` is reduced to the tokens kept of each.
        count: number of bins.
        seq_len: tokens per row.
        used: (count or more,) working memory; empty where no bin holds more than a row.
        placed: output.
    """
    bins, document, start, size = pieces
    row_offsets, columns, dropped = placed
    row_offsets[: count + 1] = 0
    if len(used):
        used[:count] = 0
        for k in range(len(bins)):
            b = bins[k]
            keep = min(size[k], max(seq_len - used[b], 0))
            used[b] += size[k]
            if keep < size[k]:
                dropped[document[k]] += size[k] - keep
                size[k] = keep
            if keep > 0:
                row_offsets[b + 1] += 1
    else:
        for k in range(len(bins)):
            row_offsets[bins[k] + 1] += 1
    total = 0
    for b in range(1, count + 1):  # from numbers of segments to the index of the next one
        here = row_offsets[b]
        row_offsets[b] = total
        total += here
    for k in range(len(bins)):
        if size[k] > 0:
            at = row_offsets[bins[k] + 1]
            row_offsets[bins[k] + 1] = at + 1
            columns[0, at] = document[k]
            columns[1, at] = start[k]
            columns[2, at] = start[k] + size[k]
    return total
