"""`.npy` files parsed in bulk: where the integers of each one are, without numpy's reader."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.reading.integer_arrays import integer_kind
from streampack.reading.npy import npy_header

#: Status of a file that the kernel leaves to numpy's own header parser.
UNCOMMON = 255

_MAGIC = np.frombuffer(b"\x93NUMPY", dtype=np.uint8)
_DESCR = np.frombuffer(b"{'descr': '", dtype=np.uint8)
_ORDER = np.frombuffer(b"', 'fortran_order': ", dtype=np.uint8)
_FALSE = np.frombuffer(b"False", dtype=np.uint8)
_TRUE = np.frombuffer(b"True", dtype=np.uint8)
_SHAPE = np.frombuffer(b", 'shape': (", dtype=np.uint8)
_CLOSE = np.frombuffer(b",), }", dtype=np.uint8)


@kernel
def npy_values(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    status: NDArray[np.uint8],
    counts: NDArray[np.int64],
    kinds: NDArray[np.uint8],
) -> None:
    """Read the headers of N files that are written the way numpy writes them.

    `starts` moves to the first integer; counts and kinds (see `INTEGER_DTYPES`) are filled. Files
    whose status is not 0 are left alone; anything unusual gets status `UNCOMMON`.
    """
    for i in range(len(starts)):
        if status[i] != 0:
            continue
        status[i] = UNCOMMON
        at = starts[i]
        end = at + sizes[i]
        if sizes[i] < 12 or _after(data, at, end, _MAGIC) < 0:
            continue
        if data[at + 6] == 1:
            values = at + 10 + (np.int64(data[at + 8]) | np.int64(data[at + 9]) << 8)
            at += 10
        elif data[at + 6] == 2:
            length = np.int64(0)
            for b in range(4):
                length |= np.int64(data[at + 8 + b]) << (8 * b)
            at += 12
            values = at + length
        else:
            continue
        if values > end:
            continue
        at = _after(data, at, values, _DESCR)
        if at < 0 or at + 3 > values:
            continue
        order, letter, item = data[at], data[at + 1], np.int64(data[at + 2]) - 48
        little = order == 60 and (item == 2 or item == 4 or item == 8)
        if not (little or (order == 124 and item == 1)) or (letter != 117 and letter != 105):
            continue
        at = _after(data, at + 3, values, _ORDER)
        if at < 0:
            continue
        after = _after(data, at, values, _FALSE)
        if after < 0:
            after = _after(data, at, values, _TRUE)  # of one dimension either order is the same
        if after < 0:
            continue
        at = _after(data, after, values, _SHAPE)
        if at < 0:
            continue
        count = np.int64(0)
        digits = 0
        while at < values and 48 <= data[at] <= 57 and digits < 16:
            count = 10 * count + data[at] - 48
            at += 1
            digits += 1
        at = _after(data, at, values, _CLOSE)
        if at < 0 or digits == 0 or count * item != end - values:
            continue
        starts[i] = values
        counts[i] = count
        kinds[i] = item + (16 if letter == 105 else 0)
        status[i] = 0


@kernel
def _after(data: NDArray[np.uint8], at: Any, end: Any, expected: NDArray[np.uint8]) -> Any:
    """The place after `expected` if it is found at `at` and ends by `end`, else -1."""
    if at + len(expected) > end:
        return np.int64(-1)
    for i in range(len(expected)):
        if data[at + i] != expected[i]:
            return np.int64(-1)
    return np.int64(at + len(expected))


def array_headers(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    status: NDArray[np.uint8],
    problems: dict[int, str],
    dtype: str | None,
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(N,) numbers of ids and (N,) kinds of arrays, with a `.npy` header or bare, of `dtype`.

    `starts` (N,) moves to the first id of each.
    """
    counts = np.zeros_like(starts)
    kinds = np.zeros(len(starts), dtype=np.uint8)
    if dtype is not None:
        kind = integer_kind(dtype)
        kinds[:] = kind
        counts[:] = sizes // (kind & 15)
        for i in np.flatnonzero((sizes % (kind & 15) != 0) & (status == 0)).tolist():
            problems[i] = f"has {sizes[i]} bytes, which is no whole number of {dtype}"
        return counts, kinds
    npy_values(data, starts, sizes, status, counts, kinds)
    for i in np.flatnonzero(status == UNCOMMON).tolist():
        content = data[starts[i] : starts[i] + sizes[i]].tobytes()
        found = npy_header(content, len(content))
        if isinstance(found, str):
            problems[i] = found
        else:
            starts[i] += found[0]
            counts[i], kinds[i] = found[1:]
    return counts, kinds
