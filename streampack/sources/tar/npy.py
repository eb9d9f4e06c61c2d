"""Where the integers of many arrays in an archive are, with a `.npy` header each or bare."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack.reading.integer_arrays import integer_kind
from streampack.reading.npy import npy_header
from streampack.reading.raw_texts import pieces


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
    for i, content in enumerate(pieces(data, starts, sizes)):
        if status[i]:
            continue
        found = npy_header(content, len(content))
        if isinstance(found, str):
            problems[i] = found
        else:
            starts[i] += found[0]
            counts[i], kinds[i] = found[1:]
    return counts, kinds
