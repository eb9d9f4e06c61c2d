"""Overflow policies for documents longer than a row, and checks of arguments of all packers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampack.arguments import is_whole, one_of, whole_number
from streampack.errors import ConfigError, PlanError

Overflow = Literal["split", "truncate", "drop", "error"]
"""Policy for documents longer than a row: "split" them into pieces of seq_len and keep every piece;
"truncate" them to seq_len tokens, counting the tail as dropped; "drop" and count them; "error"."""

OVERFLOWS: tuple[Overflow, ...] = ("split", "truncate", "drop", "error")


def as_array(values: Any) -> NDArray[Any]:
    """Convert values to an array, of no dimension if numpy cannot convert them."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        return np.asarray(None)


def checked_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return `lengths` as a contiguous int64 array; raise `PlanError` for an invalid length."""
    values = as_array(lengths)
    fits = values.ndim == 1 and (not len(values) or values.dtype.kind in "iu")
    if not fits or (len(values) and (values.min() < 0 or values.max() > np.iinfo(np.int64).max)):
        raise PlanError(
            "Document lengths must be one whole number per document, at least 0 and in 64 bits, "
            f"got shape {values.shape} and dtype {values.dtype}.",
            "Pass for example [len(ids) for ids in documents].",
            setting="lengths",
        )
    return np.ascontiguousarray(values, dtype=np.int64)


def limit_lengths(
    lengths: NDArray[np.int64], seq_len: int, overflow: Overflow
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Apply the overflow policy.

    Returns:
        The lengths to be placed (N,) int64 (above `seq_len` only under "split"), and the tokens
        dropped per document (N,) int64.

    Raises:
        PlanError: a document is too long and the policy is "error"; it names the first one.
    """
    lengths = checked_lengths(lengths)
    if overflow == "split" or not len(lengths) or lengths.max() <= seq_len:
        return lengths, np.zeros(len(lengths), dtype=np.int64)
    if overflow == "error":
        i = int(np.argmax(lengths > seq_len))
        raise PlanError(
            f"Document {i} has {lengths[i]} tokens, a row has {seq_len}.",
            'Filter such documents out, or use overflow="split", "truncate" or "drop".',
            setting="overflow",
        )
    kept = kept_tokens(lengths, seq_len, overflow)
    return kept, lengths - kept


def kept_tokens(lengths: NDArray[np.int64], longest: int, overflow: Overflow) -> NDArray[np.int64]:
    """Return the tokens (N,) int64 that rows keep of documents with these lengths (N,)."""
    if overflow in ("split", "error"):
        return lengths
    return np.where(lengths > longest, longest if overflow == "truncate" else 0, lengths)


def require_seq_len(seq_len: int, overflow: str) -> int:
    """Return `seq_len` as an int; raise `ConfigError` unless both settings are valid."""
    one_of("overflow", overflow, OVERFLOWS)
    return whole_number("seq_len", seq_len, least=2, most=(1 << 31) - 1)


def require_buckets(seq_lens: Sequence[int]) -> tuple[int, ...]:
    """Return `seq_lens` as a tuple; raise `ConfigError` unless they ascend."""
    sizes = tuple(seq_lens) if isinstance(seq_lens, Sequence) else ()
    sizes = tuple(require_seq_len(size, "split") for size in sizes)
    if not sizes or list(sizes) != sorted(set(sizes)):
        raise ConfigError(
            f"seq_lens must be ascending row lengths in tokens, got {seq_lens!r}.",
            "Use for example seq_lens=(2048, 4096, 8192, 16384).",
            setting="seq_lens",
        )
    return sizes


def require_atom(atom: int, seq_len: int) -> int:
    """Return `atom`; raise `ConfigError` unless it is a divisor or a multiple of `seq_len`."""
    fits = is_whole(atom) and 1 <= atom < 1 << 31
    if not fits or (seq_len % atom and atom % seq_len):
        raise ConfigError(
            f"atom must be a divisor or a multiple of seq_len={seq_len}, got {atom!r}.",
            "Leave it out for one row, or use a quarter, a half, two or four times seq_len.",
            setting="atom",
        )
    return int(atom)


def require_align(align: int | Sequence[int], seq_len: int, extra_capacity: int = 0) -> int:
    """Return the least common multiple of `align`, one number or several.

    Raises:
        ConfigError: it does not divide `seq_len`, or it is above 1 together with extra capacity.
    """
    several = isinstance(align, Iterable) and not isinstance(align, (str, bytes))
    needs: list[Any] = [*cast(Any, align)] if several else [align]
    known = bool(needs) and all(is_whole(need) and need >= 1 for need in needs)
    multiple = math.lcm(*map(int, needs)) if known else 0
    if not known or seq_len % multiple or (multiple > 1 and extra_capacity):
        common = f" (together {multiple})" if known and len(needs) > 1 else ""
        raise ConfigError(
            f"align must divide seq_len and excludes extra_capacity, got {align!r}{common} with "
            f"seq_len={seq_len} and extra_capacity={extra_capacity}.",
            "Use a divisor of seq_len (2 * cp_size for context parallelism), and no extra "
            "capacity.",
            setting="align",
        )
    return multiple
