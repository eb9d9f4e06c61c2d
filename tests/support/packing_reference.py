"""Obvious quadratic packers, written for reading, to hold the compiled ones against."""

from __future__ import annotations

from fractions import Fraction

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


def within(
    documents: list[tuple[int, ...]], limits: tuple[int, ...], *, best: bool, align: int = 1
) -> list[Row]:
    """Rows of documents with several limits; a document is its share of each, tokens first."""
    taken = [(-(-each[0] // align) * align, *each[1:]) for each in documents]
    fit = [
        i
        for i, each in enumerate(documents)
        if each[0] and all(size <= most for size, most in zip(each, limits, strict=True))
    ]
    fit.sort(
        key=lambda i: -max((n << 30) // most for n, most in zip(taken[i], limits, strict=True))
    )
    bins: list[list[int]] = []
    for i in fit:
        candidates = []
        for number, row in enumerate(bins):
            rooms = [most - sum(taken[j][k] for j in row) for k, most in enumerate(limits)]
            if all(size <= room for size, room in zip(taken[i], rooms, strict=True)):
                candidates.append((rooms[0] if best else 0, number))
        if candidates:
            bins[min(candidates)[1]].append(i)
        else:
            bins.append([i])
    return [[(i, 0, documents[i][0]) for i in row] for row in bins]


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


def atoms(lengths: list[int], seq_len: int, atom: int, order: list[int]) -> list[Row]:
    """Concat with its whole atoms in this order."""
    stream = [(d, t) for d, length in enumerate(lengths) for t in range(length)]
    cut = [stream[low : low + atom] for low in range(0, len(stream), atom)]
    shuffled = [cut[i] for i in order] + cut[len(order) :]
    return _rows([token for part in shuffled for token in part], seq_len)


def pad_pieces(lengths: list[int], atom: int) -> list[tuple[int, int, int]]:
    return [row[0] for row in pad(lengths, atom)]


def seamless(
    lengths: list[int],
    seq_len: int,
    share: Fraction,
    extra_capacity: int,
    *,
    keep_tails: bool = False,
) -> tuple[list[Row], int]:
    """Rows of both stages, and how many tokens are dropped."""
    rows: list[Row] = []
    short: list[tuple[int, int, int]] = []
    for document, length in enumerate(lengths):
        n = length // seq_len
        allowed = n * share * seq_len
        if n >= 1 and length % seq_len and length + int(allowed) >= (n + 1) * seq_len:
            repeated = (n + 1) * seq_len - length
            start = 0
            rows.append([(document, 0, seq_len)])
            for junction in range(n):
                start += seq_len - (repeated // n + (junction < repeated % n))
                rows.append([(document, start, start + seq_len)])
            assert start + seq_len == length
        else:
            rows += [[(document, k * seq_len, (k + 1) * seq_len)] for k in range(n)]
            if length % seq_len:
                short.append((document, n * seq_len, length))
    dropped = 0
    while True:
        left: list[tuple[int, int]] = []
        full = 0
        for row in _first_fit(short, seq_len + extra_capacity):
            stream = [(d, t) for d, start, stop in row for t in range(start, stop)]
            if len(stream) < seq_len:
                left += stream
                continue
            full += 1
            rows += _rows(stream[:seq_len], seq_len)
            if keep_tails:
                left += stream[seq_len:]
            else:
                dropped += len(stream) - seq_len
        if not (keep_tails and full):
            return rows + _rows(sorted(left), seq_len), dropped
        short = [piece for row in _rows(sorted(left), len(left) + 1) for piece in row]


def _first_fit(pieces: list[tuple[int, int, int]], capacity: int) -> list[Row]:
    bins: list[Row] = []
    for piece in sorted(pieces, key=lambda piece: piece[1] - piece[2]):
        size = piece[2] - piece[1]
        for row in bins:
            if _tokens(row) + size <= capacity:
                row.append(piece)
                break
        else:
            bins.append([piece])
    return bins


def restarting(lengths: list[int], seq_len: int) -> list[Row]:
    """Rows in order of arrival; a document that fits a row and was cut is in the next one whole."""
    rows: list[Row] = [[]]
    for document, length in enumerate(lengths):
        at = 0
        while at < length:
            end = min(length, at + seq_len - _tokens(rows[-1]))
            rows[-1].append((document, at, end))
            if _tokens(rows[-1]) == seq_len:
                rows.append([])
            at = 0 if end < length <= seq_len else end
    return rows if rows[-1] else rows[:-1]


def crop(
    lengths: list[int], seq_len: int, *, keep_cropped: bool, closes: bool = False
) -> tuple[list[Row], int]:
    """Rows, and how many tokens are dropped. Whole rows of long documents come first."""
    rows: list[Row] = []
    waiting: list[tuple[int, int, int]] = []
    for document, length in enumerate(lengths):
        n = length // seq_len
        rows += [[(document, k * seq_len, (k + 1) * seq_len)] for k in range(n)]
        if length % seq_len:
            waiting.append((document, n * seq_len, length))
    row: Row = []
    dropped = 0
    chosen_lengths: list[int] = []
    while waiting:
        room = seq_len - _tokens(row)
        sizes = [stop - start for _, start, stop in waiting]
        fitting = [size for size in sizes if size <= room]
        if not chosen_lengths and closes and row and fitting:
            chosen_lengths = _least_waste(sizes, room)
        size = max(fitting) if fitting else min(sizes)
        chosen = sizes.index(chosen_lengths.pop(0) if chosen_lengths else size)
        document, start, stop = waiting.pop(chosen)
        end = min(stop, start + room)
        row.append((document, start, end))
        if end < stop and keep_cropped:
            waiting.append((document, end, stop))
        elif end < stop:
            dropped += stop - end
        if _tokens(row) == seq_len:
            rows.append(row)
            row = []
    return rows + ([row] if row else []), dropped


def _least_waste(sizes: list[int], room: int) -> list[int]:
    """The one or two lengths that close a row best, or the largest that fits."""
    choices = [(size - room, 0, -size, [size]) for size in sizes if size >= room]
    for i, a in enumerate(sizes):
        for j, b in enumerate(sizes):
            if i != j and b <= a <= room <= a + b:
                choices.append((a + b - room, 1, -a, [a, b]))
    largest = max(size for size in sizes if size <= room)
    waste, _, _, chosen = min(choices, default=(1, 0, 0, [largest]))
    return [largest] if waste and largest + 2 * min(sizes) <= room else chosen


def _tokens(row: Row) -> int:
    return sum(stop - start for _, start, stop in row)


def _rows(stream: list[tuple[int, int]], seq_len: int) -> list[Row]:
    """(document, position) tokens cut every seq_len, neighbours in one segment."""
    rows = []
    for low in range(0, len(stream), seq_len):
        row: Row = []
        for document, position in stream[low : low + seq_len]:
            if row and row[-1][0] == document and row[-1][2] == position:
                row[-1] = (document, row[-1][1], position + 1)
            else:
                row.append((document, position, position + 1))
        rows.append(row)
    return rows
