"""The rows of a bucket schedule, made the obvious way, to hold the compiled ones against."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

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
) -> list[list[Row]]:
    """Batches of rows: `count` of them, then as many as it takes for what must go.

    A batch of bucket b has rows_of[b] rows, in which a piece takes up a multiple of aligns[b].
    """
    shelf = [d for d, length in enumerate(lengths) if length]  # those with tokens left; ties go by
    left, at = list(lengths), [0] * len(lengths)  # their order here
    cut: list[int] = []
    classes = [min(bisect_left(seq_lens, n), len(seq_lens) - 1) for n in lengths]
    queues = [
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

    def opener(b: int, late: bool) -> tuple[int, bool]:
        """The document, and whether its turn came in random order."""
        above = seq_lens[b - 1] if b else seq_lens[0] // 2
        if late and (d := longest(seq_lens[-1], True)) is not None:
            return d, False
        pressing = longest(seq_lens[b], True)
        if pressing is not None and left[pressing] > above:
            return pressing, False
        while queues[b]:
            d = queues[b][0]
            if left[d] > above and (left[d] <= seq_lens[b] or b == len(seq_lens) - 1):
                return d, True
            queues[b].pop(0)
        for choice in (pressing, longest(seq_lens[b], False)):
            if choice is not None:
                return choice, False
        return to_cut(), False

    def to_cut() -> int:
        if cut and left[cut[-1]]:
            return cut[-1]
        some = [d for d in shelf if must_go[d]] or shelf
        return max(some, key=size)

    def fill(b: int, late: bool) -> Row:
        while True:
            row: Row = []
            d, by_turn = opener(b, late)
            room = seq_lens[b] - place(row, d, seq_lens[b], aligns[b])
            while room:
                choices = [longest(room, True), longest(room, False)]
                fitting = [choice for choice in choices if choice is not None]
                if not fitting:
                    break
                room -= place(row, fitting[0], room, aligns[b])
            if not shelf or room / seq_lens[b] <= threshold:
                return row
            if not by_turn:
                place(row, to_cut(), room, aligns[b])
                return row
            queues[b].pop(0)
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
        batches.append(rows)
    return batches
