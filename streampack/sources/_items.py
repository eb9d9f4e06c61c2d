"""Documents out of Python objects: lists, arrays and strings that a user or a parser made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents import TOKEN_DTYPES, Documents

__all__ = ["integer_array", "token_block"]

_LARGEST = 2**32 - 1


def integer_array(value: Any) -> NDArray[Any] | str:
    """The ids in a list or array as a flat integer array, or what is wrong with it."""
    if isinstance(value, str | bytes | dict) or not hasattr(value, "__len__"):
        return f"it is {_a(value)}, not a list of ids"
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        return f"it is not a list of ids ({error})"
    if array.ndim != 1:
        return f"its shape is {array.shape}, not one dimension"
    if array.size == 0 and not isinstance(value, np.ndarray):
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        return f"it holds {array.dtype} values, not integers"
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def token_block(
    arrays: Sequence[NDArray[Any]],
    origin: NDArray[np.void],
    masks: Sequence[NDArray[np.bool_]] | None = None,
) -> tuple[Documents, NDArray[np.bool_]]:
    """A block from integer arrays, and which documents (N,) have an id that does not fit.

    The arrays' dtype is kept if they share one of uint16, uint32 and int32; else it is uint32.
    """
    dtypes = {array.dtype for array in arrays}
    bad = np.zeros(len(arrays), dtype=np.bool_)
    for i, array in enumerate(arrays):
        if array.dtype.kind == "i" or array.dtype.itemsize > 4:
            bad[i] = len(array) > 0 and (int(array.min()) < 0 or int(array.max()) > _LARGEST)
    if len(dtypes) != 1 or dtypes.isdisjoint(TOKEN_DTYPES):
        arrays = [array.astype(np.uint32) for array in arrays]
    return Documents.from_arrays(arrays, origin, masks), bad


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
