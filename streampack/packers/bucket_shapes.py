"""Batch shapes of the buckets: rows per batch, alignment of pieces, and ranks that share a batch.

With context parallelism of degree d a batch has d times the tokens, so every rank holds the same
number of tokens in any step. In shared buckets a piece occupies a multiple of 2 * d slots, as the
zigzag of ring attention requires.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import is_whole
from streampack.documents.blocks import ranges_of
from streampack.errors import ConfigError
from streampack.packers.curriculum import Curriculum


class Shapes(NamedTuple):
    """Shapes of the batches of each of B buckets.

    Attributes:
        sizes: (B,) int64, tokens per row, ascending.
        rows: (B,) int64, rows per batch.
        aligns: (B,) int64, divisors of `sizes`; a piece occupies a multiple of its bucket's.
    """

    sizes: NDArray[np.int64]
    rows: NDArray[np.int64]
    aligns: NDArray[np.int64]

    @classmethod
    def of(
        cls, seq_lens: Sequence[int], cp: Sequence[int], align: int, batch_tokens: int
    ) -> Shapes:
        """Return the shapes for which a batch of the longest rows has `batch_tokens` slots."""
        sizes, degrees = np.array(seq_lens, dtype=np.int64), np.array(cp, dtype=np.int64)
        aligns = np.array([multiple_of(degree, align) for degree in cp], dtype=np.int64)
        return cls(sizes, batch_tokens * degrees // (cp[-1] * sizes), aligns)


def multiple_of(degree: int, align: int) -> int:
    """Return the alignment of pieces, in slots, in batches shared by `degree` ranks."""
    return math.lcm(align, 2 * degree if degree > 1 else 1)


def checked_degrees(cp: Any, seq_lens: Sequence[int], align: int) -> tuple[int, ...]:
    """Return `cp` as a tuple with one degree per bucket; an empty `cp` gives ones.

    Raises:
        ConfigError: `cp` is not one number per bucket, each a divisor of the last; or a row length
            is not a multiple of twice its bucket's degree.
    """
    known = isinstance(cp, Sequence) and not isinstance(cp, str)
    degrees = (tuple(cp) if known else ()) or ((1,) * len(seq_lens) if known else ())
    known = len(degrees) == len(seq_lens) and all(is_whole(n) and n >= 1 for n in degrees)
    if not known or list(degrees) != sorted(degrees) or any(degrees[-1] % n for n in degrees):
        raise ConfigError(
            f"cp must give a number of ranks for each bucket of {tuple(seq_lens)}, got {cp!r}.",
            "Pass ascending divisors of the last one, for example (1, 4, 16).",
            setting="cp",
        )
    for size, degree in zip(seq_lens, degrees, strict=True):
        if size % multiple_of(degree, align):
            raise ConfigError(
                f"Row lengths must be multiples of {multiple_of(degree, align)} with cp={cp!r} and "
                f"align={align}, got a row of {size} tokens.",
                "Use rows of a multiple of that.",
                setting="cp",
            )
    return tuple(map(int, degrees))


def check_rows(seq_lens: Sequence[int], cp: Sequence[int], tokens: int) -> None:
    """Raise `ConfigError` unless a batch of every bucket has room for at least one row."""
    least = max(-(-size * cp[-1] // degree) for size, degree in zip(seq_lens, cp, strict=True))
    if tokens < least:
        raise ConfigError(
            f"A batch must have room for a row of every bucket in {tuple(seq_lens)}; with "
            f"cp={tuple(cp)} and batch_tokens={tokens} a rank has {tokens // cp[-1]} tokens.",
            f"Use batch_tokens={-(-least // seq_lens[-1]) * seq_lens[-1]} or more.",
            setting="batch_tokens",
        )


def shares_of_batches(shares: Curriculum, cp: Sequence[int]) -> Curriculum:
    """Convert the buckets' shares of tokens into shares of batches."""
    if len({*cp}) == 1:
        return shares
    knots = [
        (at, tuple(share / degree for share, degree in zip(knot, cp, strict=True)))
        for at, knot in shares.knots
    ]
    return Curriculum(tuple(knots), shares.repeat)


def by_length(lengths: NDArray[np.int64], longest: int) -> NDArray[np.int64]:
    """Return document indices by length (N,), each repeated for every row of `longest` it fills."""
    order = lengths.argsort(kind="stable")
    return order.repeat(np.maximum(-(-lengths[order] // longest), 1))


def levels_of(turns: NDArray[np.int8], rows: NDArray[np.int64], first: int) -> NDArray[np.uint32]:
    """Return each row's level: the quantile of its opener's length in its bucket, times 2**32.

    The levels of a bucket's rows, over all batches, are a low-discrepancy sequence: multiples of
    the golden ratio, so any stretch of them is even.

    Args:
        turns: (N,) buckets of the lane's batches, from its beginning.
        rows: (B,) int64, rows per batch of each bucket.
        first: index of the first batch to return levels for.
    """
    before = np.zeros(len(turns), dtype=np.int64)
    for b in range(len(rows)):
        in_bucket = turns == b
        before[in_bucket] = np.arange(int(in_bucket.sum())) * rows[b]
    each = rows[turns[first:]]
    number = np.repeat(before[first:], each) + ranges_of(np.zeros_like(each), each)
    return (number * 2654435769 & 0xFFFFFFFF).astype(np.uint32)
