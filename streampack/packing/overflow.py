"""Overflow: what happens to documents longer than a row."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampack.errors import PlanError

Overflow = Literal["split", "truncate", "drop", "error"]
"""Documents longer than a row: "split" into pieces of seq_len, every piece kept; "truncate" to
the first seq_len tokens, the rest dropped and counted; "drop" whole and count; "error"."""

OVERFLOWS: tuple[Overflow, ...] = ("split", "truncate", "drop", "error")


def as_array(given: Any) -> NDArray[Any]:
    """The values as an array, which has no dimension where numpy cannot make one of them."""
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError):
        return np.asarray(None)


def checked_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    """`lengths` as a contiguous int64 array; raises `PlanError` if one is no length."""
    given = as_array(lengths)
    fits = given.ndim == 1 and (not len(given) or given.dtype.kind in "iu")
    if not fits or (len(given) and (given.min() < 0 or given.max() > np.iinfo(np.int64).max)):
        raise PlanError(
            f"Document lengths have shape {given.shape} and dtype {given.dtype}, or a value that "
            "is negative or does not fit into 64 bits.",
            "They cannot be packed.",
            "Pass one whole number >= 0 per document, such as [len(ids) for ids in documents].",
        )
    return np.ascontiguousarray(given, dtype=np.int64)


def limit_lengths(
    lengths: NDArray[np.int64], seq_len: int, overflow: Overflow
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Apply the overflow policy.

    Returns:
        The lengths that go into rows (N,) int64 (above `seq_len` only under "split"), and the
        tokens dropped per document (N,) int64.

    Raises:
        PlanError: under "error", naming the first document that is too long.
    """
    lengths = checked_lengths(lengths)
    if overflow == "split" or not len(lengths) or lengths.max() <= seq_len:
        return lengths, np.zeros(len(lengths), dtype=np.int64)
    if overflow == "error":
        i = int(np.argmax(lengths > seq_len))
        raise PlanError(
            f"Document {i} has {lengths[i]} tokens, a row has {seq_len}.",
            'overflow="error" forbids that.',
            'Filter such documents out, or use overflow="split", "truncate" or "drop".',
        )
    keep = seq_len if overflow == "truncate" else 0
    kept = np.where(lengths > seq_len, keep, lengths)
    return kept, lengths - kept
