"""Ragged arrays: values of many documents in one flat array, and the offsets between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N + 1,) int64 offsets of documents with these lengths (N,) laid end to end."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ranges_of(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(T,) int64: the numbers from each of `starts` (N,) on, `sizes` (N,) of them, end to end."""
    offsets = offsets_of(sizes)
    return np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])


def words_of(values: NDArray[Any]) -> NDArray[Any]:
    """The values as whole numbers of the same width, which kernels copy whatever they mean."""
    return values.view(f"u{values.dtype.itemsize}")


@kernel
def gather_ragged(
    source: NDArray[np.generic],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    out: NDArray[np.generic],
) -> None:
    """Copy slice i of `source`, beginning at starts[i], to out[offsets[i]:offsets[i + 1]]."""
    for i in range(len(starts)):
        # Through slices the inner loop needs no test for negative indices and becomes a copy.
        target = out[offsets[i] : offsets[i + 1]]
        piece = source[starts[i] : starts[i] + len(target)]
        for k in range(len(target)):
            target[k] = piece[k]
