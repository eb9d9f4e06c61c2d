"""Rows of a lane's next batches, each batch from the bucket that the schedule assigns to it.

Steps, batch by batch in the bucket of the batch's rotation, row by row:
  1. A document opens the row: the first that exists of
     - one that must go and belongs to the bucket (it is longer than the next smaller bucket, or
       than half of the smallest);
     - any other that belongs to the bucket, in seeded random order, or with a ``choice`` the one
       nearest to the row's level: a quantile, by length, of the bucket's documents at the start
       of the round;
     - the longest that fits and must go;
     - the longest that fits;
     - the head of the document to cut.
  2. The longest document that fits the remaining room is added, starting with documents that must
     go, until no document fits.
  3. If room / bucket is above the threshold, a row opened in random order is given up: its
     documents return to the stock, but its opener opens no other row in its turn. The head of the
     document to cut fills any other row.
The document to cut is the one cut last, while part of it is left, and then the longest: a document
longer than all buckets is cut anyway, and fills many rows. (The offline algorithm cuts the
shortest.)
So long documents wait for their bucket, rows that would cut a document wait for one that fits, and
documents are cut only where nothing else opens a row. If documents that must go are left after the
requested batches, more batches follow: in these, the documents that must go open the rows, longest
first, and are cut to fit. At the end of a run batches follow until nothing is left.

Documents open rows in random order, and not longest first as in the offline algorithm: documents
that are not placed stay in the window, and their lengths should not be the same every round. Short
documents open no row while there are longer ones, because they are needed to fill rows to the end.

Cost: one compiled pass, O(documents), and for each row given up the documents in it; every document
opens at most one such row. Keeps every token.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel, kernel_of
from streampack.packers.bucket_shapes import Shapes
from streampack.packing.bitmap import Bitmap, clear_bit, new_bitmap, next_set, set_bit


class Waiting(NamedTuple):
    """Documents that wait to be placed.

    Attributes:
        lengths: (N,) int64 tokens, in order of arrival.
        must_go: (N,) bool, documents that may not wait another round.
        order: int64 document indices in the order in which they open rows; with levels they are
            sorted by length and repeated for each row that a document may open.
    """

    lengths: NDArray[np.int64]
    must_go: NDArray[np.bool_]
    order: NDArray[np.int64]


class BatchRows(NamedTuple):
    """Rows of the batches, in order.

    Attributes:
        complete: False if `buckets` had too few batches for all documents that must go.
        row_offsets: (R + 1,) int64 offsets into the segments; seq_len: (R,) int64.
        document, start, stop: (S,) int64 columns of the segments.
        batches: (B + 1,) int64 offsets of the batches into the rows.
    """

    complete: bool
    row_offsets: NDArray[np.int64]
    seq_len: NDArray[np.int64]
    document: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    batches: NDArray[np.int64]


class _Shelf(NamedTuple):
    """Documents by remaining tokens (at most the largest bucket), earliest arrival first.

    Bit i represents the length `largest - i`, so the longest comes first.
    """

    filled: Bitmap
    head: NDArray[np.int64]


class _Stock(NamedTuple):
    """All documents on two shelves: documents that must go, and the others.

    `left` and `at` are (N,): tokens of each document that are not placed yet, and the position of
    the first of them. `cut` (1,) is the document that was cut last, or -1.
    """

    pressing: _Shelf
    patient: _Shelf
    after: NDArray[np.int64]
    before: NDArray[np.int64]
    left: NDArray[np.int64]
    at: NDArray[np.int64]
    presses: NDArray[np.bool_]
    cut: NDArray[np.int64]


class _Queues(NamedTuple):
    """Documents that may wait, by bucket and in order: queue[first[b]:last[b]], -1 where removed.

    `turn` (1,) is the queue position of the document that opened the last row, or -1.
    """

    queue: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    turn: NDArray[np.int64]


class _Segments(NamedTuple):
    """Columns of segments, of which the first used[0] entries are filled."""

    document: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    used: NDArray[np.int64]


@kernel_of(lambda waiting, *_: 40 * waiting.lengths.size)
def fill_batches(
    waiting: Waiting,
    shapes: Shapes,
    buckets: NDArray[np.int8],
    count: int,
    threshold: float,
    final: bool,
    levels: NDArray[np.uint32],
) -> BatchRows:
    """Fill `count` batches, and further ones for documents that must go, while any are left.

    Args:
        waiting: documents to place.
        shapes: batch shape of every bucket.
        buckets: int8, the bucket of each batch, in order.
        count: number of batches requested.
        threshold: share of a row that may be padding.
        final: place every document, even if it may still wait.
        levels: quantile of each row's opener among its bucket's documents, in units of 2**-32;
            (0,) to open rows in the order of `waiting`.
    """
    sizes, rows_of, _ = shapes
    stock = _fill(waiting, sizes[-1])
    queues = _line_up(waiting, sizes)
    most = 0
    for b in buckets:
        most += rows_of[b]
    bound = len(waiting.lengths) + most  # each row cuts at most one document
    segments = _Segments(
        np.empty(bound, dtype=np.int64),
        np.empty(bound, dtype=np.int64),
        np.empty(bound, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )
    row_offsets = np.zeros(most + 1, dtype=np.int64)
    seq_len = np.empty(most, dtype=np.int64)
    batches = np.zeros(len(buckets) + 1, dtype=np.int64)
    filled = 0
    rows = 0
    complete = False
    while True:
        late = filled >= count
        complete = _longest(stock.pressing, sizes[-1]) < 0
        if not late or final:
            complete = complete and _longest(stock.patient, sizes[-1]) < 0
        if complete or filled == len(buckets):
            break
        b = int(buckets[filled])
        for _ in range(rows_of[b]):
            level = int(levels[rows]) if len(levels) else -1
            if not _fill_row(stock, queues, segments, shapes, b, late, threshold, level):
                break
            seq_len[rows] = sizes[b]
            rows += 1
            row_offsets[rows] = segments.used[0]
        filled += 1
        batches[filled] = rows
    k = segments.used[0]
    return BatchRows(
        complete,
        row_offsets[: rows + 1],
        seq_len[:rows],
        segments.document[:k],
        segments.start[:k],
        segments.stop[:k],
        batches[: filled + 1],
    )


@kernel
def _fill_row(
    stock: _Stock,
    queues: _Queues,
    segments: _Segments,
    shapes: Shapes,
    b: int,
    late: bool,
    threshold: float,
    level: int,
) -> bool:
    """Fill one row of bucket b; return False if no documents are left."""
    begin = segments.used[0]
    sizes, _, aligns = shapes
    align = aligns[b]
    while True:
        opener = _opener(stock, queues, sizes, b, late, level)
        if opener < 0:
            return False
        room = sizes[b] - _multiple(_place(stock, segments, opener, sizes[b]), align)
        while room > 0:
            d = _longest_of_all(stock, room)
            if d < 0:
                break
            room -= _multiple(_place(stock, segments, d, room), align)
        d = _to_cut(stock, sizes[-1]) if room / sizes[b] > threshold else -1
        if d < 0:
            return True
        if queues.turn[0] < 0:
            _place(stock, segments, d, room)
            return True
        queues.queue[queues.turn[0]] = -1
        _give_up(stock, segments, begin)


@kernel
def _give_up(stock: _Stock, segments: _Segments, begin: int) -> None:
    """Return a row's documents, all of them whole, to the stock; its segments begin at `begin`."""
    while segments.used[0] > begin:
        segments.used[0] -= 1
        k = segments.used[0]
        d = segments.document[k]
        stock.left[d] = segments.stop[k] - segments.start[k]
        stock.at[d] = segments.start[k]
        _put_on(stock, d)


@kernel
def _opener(
    stock: _Stock, queues: _Queues, sizes: NDArray[np.int64], b: int, late: bool, level: int
) -> int:
    """Return the document that opens a row of bucket b, or -1 if none is left."""
    size = sizes[b]
    class_above = sizes[b - 1] if b > 0 else sizes[0] // 2
    queues.turn[0] = -1
    if late:
        d = _longest(stock.pressing, sizes[-1])
        if d >= 0:
            return d
    pressing = _longest(stock.pressing, size)
    if pressing >= 0 and stock.left[pressing] > class_above:
        return pressing
    low, high = queues.first[b], queues.last[b]
    middle = low + (((high - low) * level) >> 32) if level >= 0 else low
    for distance in range(high - low):
        for at in (middle + distance, middle - 1 - distance):
            if at < low or at >= high:
                continue
            d = queues.queue[at]
            # A document in the queue may be used up, or belong to another bucket since a cut.
            whole = d >= 0 and (stock.left[d] <= size or b == len(sizes) - 1)
            if whole and stock.left[d] > class_above:
                queues.turn[0] = at
                if level < 0:
                    queues.first[b] = at
                return d  # type: ignore[no-any-return]
    queues.first[b] = high
    if pressing >= 0:
        return pressing
    d = _longest(stock.patient, size)
    if d >= 0:
        return d
    return _to_cut(stock, sizes[-1])


@kernel
def _place(stock: _Stock, segments: _Segments, d: int, room: int) -> int:
    """Place as much of document d as `room` allows; return the number of tokens placed."""
    size = min(stock.left[d], room)
    k = segments.used[0]
    segments.document[k] = d
    segments.start[k] = stock.at[d]
    segments.stop[k] = stock.at[d] + size
    segments.used[0] += 1
    _take_off(stock, d)
    stock.left[d] -= size
    stock.at[d] += size
    if stock.left[d] > 0:
        _put_on(stock, d)
        stock.cut[0] = d
    return size  # type: ignore[no-any-return]


@kernel
def _multiple(size: int, align: int) -> int:
    return -(-size // align) * align


@kernel
def _fill(waiting: Waiting, largest: int) -> _Stock:
    count = len(waiting.lengths)
    pressing = _Shelf(new_bitmap(largest + 1), np.full(largest + 1, -1, dtype=np.int64))
    patient = _Shelf(new_bitmap(largest + 1), np.full(largest + 1, -1, dtype=np.int64))
    stock = _Stock(
        pressing,
        patient,
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        waiting.lengths.copy(),
        np.zeros(count, dtype=np.int64),
        waiting.must_go,
        np.full(1, -1, dtype=np.int64),
    )
    for i in range(count):
        d = count - 1 - i  # a shelf is last in, first out
        if waiting.lengths[d] > 0:
            _put_on(stock, d)
    return stock


@kernel
def _line_up(waiting: Waiting, sizes: NDArray[np.int64]) -> _Queues:
    lengths, must_go, order = waiting
    others = order[(lengths[order] > 0) & ~must_go[order]]
    bucket = np.minimum(np.searchsorted(sizes, lengths[others]), len(sizes) - 1)
    turn = np.argsort(bucket, kind="mergesort")
    each, bucket = np.arange(len(sizes)), bucket[turn]
    first = np.searchsorted(bucket, each)
    last = np.searchsorted(bucket, each, side="right")
    return _Queues(others[turn], first, last, np.full(1, -1, dtype=np.int64))


@kernel
def _put_on(stock: _Stock, d: int) -> None:
    shelf = stock.pressing if stock.presses[d] else stock.patient
    place = max(len(shelf.head) - 1 - stock.left[d], 0)
    following = shelf.head[place]
    stock.after[d] = following
    stock.before[d] = -1
    if following >= 0:
        stock.before[following] = d
    else:
        set_bit(shelf.filled, place)
    shelf.head[place] = d


@kernel
def _take_off(stock: _Stock, d: int) -> None:
    shelf = stock.pressing if stock.presses[d] else stock.patient
    place = max(len(shelf.head) - 1 - stock.left[d], 0)
    following, preceding = stock.after[d], stock.before[d]
    if following >= 0:
        stock.before[following] = preceding
    if preceding >= 0:
        stock.after[preceding] = following
    else:
        shelf.head[place] = following
        if following < 0:
            clear_bit(shelf.filled, place)


@kernel
def _longest(shelf: _Shelf, room: int) -> int:
    """Return the document with most tokens left that fits `room`, or -1.

    A document longer than every bucket counts as one that fills the largest.
    """
    place = next_set(shelf.filled, len(shelf.head) - 1 - room)
    return shelf.head[place] if place >= 0 else -1  # type: ignore[no-any-return]


@kernel
def _longest_of_all(stock: _Stock, room: int) -> int:
    """Return the longest document that fits `room`, preferring those that must go, or -1."""
    d = _longest(stock.pressing, room)
    return d if d >= 0 else _longest(stock.patient, room)


@kernel
def _to_cut(stock: _Stock, largest: int) -> int:
    """Return the document to cut, which fills a row with its head, or -1 if none is left."""
    d = stock.cut[0]
    if d >= 0 and stock.left[d] > 0:
        return d  # type: ignore[no-any-return]
    return _longest_of_all(stock, largest)
