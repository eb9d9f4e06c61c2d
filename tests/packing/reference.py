"""Obvious quadratic packers, written for reading, to hold the compiled ones against."""

from __future__ import annotations

Row = list[tuple[int, int, int]]  # (document, start, stop)


def limit(lengths: list[int], seq_len: int, overflow: str) -> list[int]:
    if overflow == "truncate":
        return [min(n, seq_len) for n in lengths]
    if overflow == "drop":
        return [n if n <= seq_len else 0 for n in lengths]
    return list(lengths)


def decreasing(
    lengths: list[int],
    seq_len: int,
    *,
    best: bool,
    overflow: str = "split",
    extra_capacity: int = 0,
    protect_short: bool = False,
) -> list[Row]:
    pieces = []
    for document, length in enumerate(limit(lengths, seq_len, overflow)):
        starts = range(0, length, seq_len)
        pieces += [(document, start, min(start + seq_len, length)) for start in starts]
    pieces.sort(key=lambda piece: -(piece[2] - piece[1]))  # stable: ties by arrival
    bins: list[Row] = []
    for piece in pieces:
        size = piece[2] - piece[1]
        candidates = []
        for number, row in enumerate(bins):
            used = sum(stop - start for _, start, stop in row)
            room = seq_len + extra_capacity - used
            if room >= size and not (protect_short and used >= seq_len):
                candidates.append((room if best else 0, number))
        if candidates:
            bins[min(candidates)[1]].append(piece)
        else:
            bins.append([piece])
    rows = []
    for packed in bins:
        row, used = [], 0
        for document, start, stop in packed:
            keep = min(stop - start, seq_len - used)
            if keep > 0:
                row.append((document, start, start + keep))
                used += keep
        rows.append(row)
    return rows


def concat(lengths: list[int], seq_len: int, *, overflow: str = "split") -> list[Row]:
    stream = []
    for document, length in enumerate(limit(lengths, seq_len, overflow)):
        stream += [(document, position) for position in range(length)]
    rows = []
    for low in range(0, len(stream), seq_len):
        row: Row = []
        for document, position in stream[low : low + seq_len]:
            if row and row[-1][0] == document:
                row[-1] = (document, row[-1][1], position + 1)
            else:
                row.append((document, position, position + 1))
        rows.append(row)
    return rows


def pad(lengths: list[int], seq_len: int, *, overflow: str = "split") -> list[Row]:
    rows = []
    for document, length in enumerate(limit(lengths, seq_len, overflow)):
        start = 0
        while length - start > seq_len:
            rows.append([(document, start, start + seq_len - 1)])
            start += seq_len - 1
        if length > start:
            rows.append([(document, start, length)])
    return rows


def buckets(
    lengths: list[int], seq_lens: tuple[int, ...], threshold: float
) -> list[tuple[int, Row]]:
    """Algorithm 1 of the bucket paper: (bucket, row) in the order in which rows are made."""
    left = [(document, 0, length) for document, length in enumerate(lengths) if length]
    rows = []
    while left:
        left.sort(key=lambda piece: (piece[1] - piece[2], piece[0]))
        _, start, stop = left[0]
        capacity = next((size for size in seq_lens if size >= stop - start), seq_lens[-1])
        room, row, rest = capacity, [], []
        for document, start, stop in left:
            if stop - start <= room:
                row.append((document, start, stop))
                room -= stop - start
            elif not row:
                row.append((document, start, start + room))
                rest.append((document, start + room, stop))
                room = 0
            else:
                rest.append((document, start, stop))
        left = rest
        while left and room and room / capacity > threshold:
            document, start, stop = left.pop()
            taken = min(stop - start, room)
            row.append((document, start, start + taken))
            room -= taken
            if start + taken < stop:
                left.append((document, start + taken, stop))
        rows.append((capacity, row))
    return rows
