"""What happens to documents longer than a row; checks of arguments that packers share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampack.arguments import is_whole, one_of, whole_number
from streampack.errors import ConfigError, PlanError

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
            "Pass one whole number >= 0 per document, such as [len(ids) for ids in documents].",
            setting="lengths",
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
            'Filter such documents out, or use overflow="split", "truncate" or "drop".',
            setting="overflow",
        )
    kept = kept_tokens(lengths, seq_len, overflow)
    return kept, lengths - kept


def kept_tokens(lengths: NDArray[np.int64], longest: int, overflow: Overflow) -> NDArray[np.int64]:
    """(N,) int64: tokens that rows hold of documents of these lengths (N,), if none is refused."""
    if overflow in ("split", "error"):
        return lengths
    return np.where(lengths > longest, longest if overflow == "truncate" else 0, lengths)


def require_seq_len(seq_len: int, overflow: str) -> int:
    """`seq_len` as a plain int; raises `ConfigError` unless these settings make sense."""
    one_of("overflow", overflow, OVERFLOWS)
    return whole_number("seq_len", seq_len, least=2, most=(1 << 31) - 1)


def require_buckets(seq_lens: Sequence[int]) -> tuple[int, ...]:
    """`seq_lens` as a tuple; raises `ConfigError` unless they ascend."""
    sizes = tuple(seq_lens) if isinstance(seq_lens, Sequence) else ()
    sizes = tuple(require_seq_len(size, "split") for size in sizes)
    if not sizes or list(sizes) != sorted(set(sizes)):
        raise ConfigError(
            f"seq_lens is {seq_lens!r}.",
            "Use for example seq_lens=(2048, 4096, 8192, 16384).",
            setting="seq_lens",
        )
    return sizes


def require_atom(atom: int, seq_len: int) -> int:
    """`atom`; raises `ConfigError` unless it divides `seq_len` or is a multiple of it."""
    fits = is_whole(atom) and 1 <= atom < 1 << 31
    if not fits or (seq_len % atom and atom % seq_len):
        raise ConfigError(
            f"atom is {atom!r} for seq_len {seq_len}, and one must divide the other.",
            "Leave it out for one row, or use a quarter, a half, two or four times seq_len.",
            setting="atom",
        )
    return int(atom)


def require_align(align: int | Sequence[int], seq_len: int, extra_capacity: int = 0) -> int:
    """The least common multiple of `align`, which may be several numbers.

    Raises:
        ConfigError: rows of `seq_len` cannot hold pieces of multiples of it.
    """
    several = isinstance(align, Iterable) and not isinstance(align, (str, bytes))
    needs: list[Any] = [*cast(Any, align)] if several else [align]
    known = bool(needs) and all(is_whole(need) and need >= 1 for need in needs)
    multiple = math.lcm(*map(int, needs)) if known else 0
    if not known or seq_len % multiple or (multiple > 1 and extra_capacity):
        common = f" (together {multiple})" if known and len(needs) > 1 else ""
        raise ConfigError(
            f"align is {align!r}{common} for seq_len {seq_len} and extra_capacity "
            f"{extra_capacity}.",
            "Use a divisor of seq_len (2 * cp_size for context parallelism), and no extra "
            "capacity.",
            setting="align",
        )
    return multiple
