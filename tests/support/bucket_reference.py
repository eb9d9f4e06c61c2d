"""The rows of a bucket schedule, made the obvious way, to hold the compiled ones against."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import zip_longest

from tests.support.packing_reference import Row


def scheduled_rows(
    lengths: Sequence[int],
    must_go: Sequence[bool],
    order: Sequence[int],
    seq_lens: Sequence[int],
    turns: Sequence[int],
    *,
    count: int,
    rows_of: Sequence[int],
    aligns: Sequence[int],
    threshold: float,
    final: bool,
    levels: Sequence[int] | None = None,
) -> list[list[Row]]:
    """Batches of rows: `count` of them, then more until no document that must go is left.

    A batch of bucket b has rows_of[b] rows, in which a piece takes up a multiple of aligns[b].
    With levels the opener of row r is the document of its bucket that is nearest to that level.
    """
    shelf = [d for d, length in enumerate(lengths) if length]  # those with tokens left; ties go by
    left, at = list(lengths), [0] * len(lengths)  # their order here
    cut: list[int] = []
    classes = [min(bisect_left(seq_lens, n), len(seq_lens) - 1) for n in lengths]
    made: list[Row] = []
    queues: list[list[int | None]] = [
        [d for d in order if lengths[d] and not must_go[d] and classes[d] == b]
        for b in range(len(seq_lens))
    ]

    def size(d: int) -> int:
        return min(left[d], seq_lens[-1])

    def longest(room: int, pressing: bool) -> int | None:
        fitting = [d for d in shelf if must_go[d] == pressing and size(d) <= room]
        return max(fitting, key=size) if fitting else None

    def place(row: Row, d: int, room: int, align: int) -> int:
        taken = min(left[d], room)
        row.append((d, at[d], at[d] + taken))
        left[d] -= taken
        at[d] += taken
        shelf.remove(d)
        if left[d]:
            shelf.insert(0, d)
            cut.append(d)
        while taken % align:
            taken += 1
        return taken

    def opener(b: int, late: bool) -> tuple[int, int | None]:
        """The document, and its place in the queue if its turn came there."""
        above = seq_lens[b - 1] if b else seq_lens[0] // 2
        if late and (d := longest(seq_lens[-1], True)) is not None:
            return d, None
        pressing = longest(seq_lens[b], True)
        if pressing is not None and left[pressing] > above:
            return pressing, None
        middle = len(queues[b]) * levels[len(made)] >> 32 if levels else 0
        below = range(middle - 1, -1, -1)
        above_or_at = range(middle, len(queues[b]))
        for pair in zip_longest(above_or_at, below):
            for place_in_queue in pair:
                d = None if place_in_queue is None else queues[b][place_in_queue]
                if d is None or left[d] <= above:
                    continue
                if left[d] <= seq_lens[b] or b == len(seq_lens) - 1:
                    return d, place_in_queue
        queues[b].clear()
        for choice in (pressing, longest(seq_lens[b], False)):
            if choice is not None:
                return choice, None
        return to_cut(), None

    def to_cut() -> int:
        if cut and left[cut[-1]]:
            return cut[-1]
        some = [d for d in shelf if must_go[d]] or shelf
        return max(some, key=size)

    def fill(b: int, late: bool) -> Row:
        while True:
            row: Row = []
            d, turn = opener(b, late)
            room = seq_lens[b] - place(row, d, seq_lens[b], aligns[b])
            while room:
                choices = [longest(room, True), longest(room, False)]
                fitting = [choice for choice in choices if choice is not None]
                if not fitting:
                    break
                room -= place(row, fitting[0], room, aligns[b])
            if not shelf or room / seq_lens[b] <= threshold:
                return row
            if turn is None:
                place(row, to_cut(), room, aligns[b])
                return row
            queues[b][turn] = None
            for d, start, stop in reversed(row):
                left[d], at[d] = stop - start, start
                shelf.insert(0, d)

    batches: list[list[Row]] = []
    for b in turns:
        late = len(batches) >= count
        if not (any(must_go[d] for d in shelf) if late and not final else shelf):
            break
        rows: list[Row] = []
        while shelf and len(rows) < rows_of[b]:
            rows.append(fill(b, late))
            made.append(rows[-1])
        batches.append(rows)
    return batches
