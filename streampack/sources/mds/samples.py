"""The samples of MDS shards: where the values of columns are. No number in a shard is trusted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streampack.sources.mds.index import Column

#: What is wrong with a sample, by its status; ends a sentence that begins with its name.
STATUS = {
    1: "has columns whose sizes do not add up to its length",
    2: "has an array header that is cut short",
    3: "has an array that does not hold integers",
    4: "has an array of more than one dimension",
    5: "has an array whose bytes do not match its shape",
    6: "has a loss mask or a field that is not as long as its tokens",
    7: "is longer than max_document_bytes of Reading",
}
UNEVEN, TOO_LONG = 6, 7


def find_values(
    data: NDArray[np.uint8],
    table: NDArray[np.uint32],
    column_sizes: Sequence[int],
    wanted: Sequence[Column],
    max_bytes: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Find the values of W columns in samples.

    Args:
        data: (B,) of the shard.
        table: (M + 1,) where each of M samples begins, and the last one ends; all inside `data`.
        column_sizes: bytes of all columns, 0 where they vary.
        wanted: the columns, that of the documents first.
        max_bytes: no sample is looked at once the documents have so many.

    Returns:
        Of the first N samples (W, N) where the values begin and (W, N) their bytes, and (N,) the
        status of the samples.
    """
    begins, ends = table[:-1].astype(np.int64), table[1:].astype(np.int64)
    head = begins
    at = values_begin = begins + 4 * column_sizes.count(0)
    places = {column.number: (at, at) for column in wanted}
    for number, fixed in enumerate(column_sizes):
        sizes = np.full_like(at, fixed)
        if not fixed:
            sizes = _bytes_at(data, head, 4).view("<u4")[:, 0].astype(np.int64)
            head = head + 4
        if number in places:
            places[number] = at, sizes
        at = at + sizes
    status = ((values_begin > ends) | (at != ends)).astype(np.uint8)
    starts, sizes = (np.stack([places[c.number][k] for c in wanted]) for k in (0, 1))
    n = int(np.searchsorted(np.cumsum(np.where(status == 0, sizes[0], 0)), max_bytes)) + 1
    return starts[:, :n], sizes[:, :n], status[:n]


def array_values(
    data: NDArray[np.uint8],
    columns: Sequence[Column],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    status: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Read the headers of arrays in C columns of N samples.

    Args:
        data: (B,) of the shard.
        columns: C of them.
        starts: (C, N) of the arrays, moves to their first numbers.
        sizes: (C, N) their bytes.
        status: (N,) gets what is wrong.

    Returns:
        (C, N) how many numbers, and (C, N) their kinds as in `INTEGER_DTYPES`.
    """
    counts = np.zeros(starts.shape, dtype=np.int64)
    kinds = np.zeros(starts.shape, dtype=np.uint8)

    def refuse(wrong: NDArray[np.bool_], reason: int) -> None:
        status[(status == 0) & wrong] = reason

    for row, column in enumerate(columns):
        at, end = starts[row], starts[row] + sizes[row]
        kinds[row] = column.kind
        if not column.kind:
            refuse(at >= end, 2)
            code = _bytes_at(data, at, 1)[:, 0]
            refuse((code & 6 != 0) | ~np.isin(code >> 3, (1, 2, 4, 8)), 3)
            kinds[row] = code >> 3 | (code & 1) << 4
            at += 1
        stated = None
        if column.has_shape:
            refuse(at >= end, 2)
            head = _bytes_at(data, at, 1)[:, 0]
            refuse(head >> 2 != 1, 4)
            width = 1 << (head & 3).astype(np.int64)
            at += 1
            refuse(at + width > end, 2)
            digits = _bytes_at(data, at, 8) * (np.arange(8) < width[:, None])
            stated = digits.astype(np.uint8).view("<u8")[:, 0]
            at += width
        counts[row], rest = np.divmod(end - at, np.maximum(kinds[row] & 15, 1))
        refuse(rest != 0, 5)
        if stated is not None:
            refuse(stated != counts[row].astype(np.uint64), 5)
    return counts, kinds


def _bytes_at(data: NDArray[np.uint8], places: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """(N, width) the bytes from each of N places on; others where they would lie outside."""
    found: NDArray[np.uint8] = data[np.minimum(places[:, None] + np.arange(width), len(data) - 1)]
    return found


def problems_of(status: NDArray[np.uint8]) -> dict[int, str]:
    """What is wrong with samples, by their number."""
    return {i: STATUS[int(status[i])] for i in np.flatnonzero(status).tolist()}
