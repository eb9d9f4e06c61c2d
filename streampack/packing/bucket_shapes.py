"""The batches of each bucket: rows, slots of a piece, and how many ranks share one.

With degrees of context parallelism a batch has as many tokens more as ranks share it, so every rank
holds the same number of tokens in any step. A piece then takes up a multiple of twice the degree,
as the zigzag of ring attention wants, in the buckets that are shared.
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
from streampack.packing.curriculum import Curriculum


class Shapes(NamedTuple):
    """What the batches of each bucket are like.

    Attributes:
        sizes: (B,) int64, tokens of a row, ascending.
        rows: (B,) int64, rows of a batch.
        aligns: (B,) int64, divisors of `sizes`: a piece takes up a multiple of it.
    """

    sizes: NDArray[np.int64]
    rows: NDArray[np.int64]
    aligns: NDArray[np.int64]

    @classmethod
    def of(
        cls, seq_lens: Sequence[int], cp: Sequence[int], align: int, batch_tokens: int
    ) -> Shapes:
        """The shapes where a batch of the longest rows has `batch_tokens` slots."""
        sizes, degrees = np.array(seq_lens, dtype=np.int64), np.array(cp, dtype=np.int64)
        aligns = np.array([multiple_of(degree, align) for degree in cp], dtype=np.int64)
        return cls(sizes, batch_tokens * degrees // (cp[-1] * sizes), aligns)


def multiple_of(degree: int, align: int) -> int:
    """What a piece takes up a multiple of, in batches that so many ranks share."""
    return math.lcm(align, 2 * degree if degree > 1 else 1)


def checked_degrees(cp: Any, seq_lens: Sequence[int], align: int) -> tuple[int, ...]:
    """`cp` as a tuple, of ones if it is empty.

    Raises:
        ConfigError: it is not one number per bucket, each a divisor of the last; or rows of these
            lengths cannot hold pieces of multiples of twice the number.
    """
    known = isinstance(cp, Sequence) and not isinstance(cp, str)
    degrees = (tuple(cp) if known else ()) or ((1,) * len(seq_lens) if known else ())
    known = len(degrees) == len(seq_lens) and all(is_whole(n) and n >= 1 for n in degrees)
    if not known or list(degrees) != sorted(degrees) or any(degrees[-1] % n for n in degrees):
        raise ConfigError(
            f"cp is {cp!r} for the buckets {tuple(seq_lens)}.",
            "Pass a number of ranks for each, ascending, and divisors of the last: (1, 4, 16).",
            setting="cp",
        )
    for size, degree in zip(seq_lens, degrees, strict=True):
        if size % multiple_of(degree, align):
            raise ConfigError(
                f"Rows of {size} tokens have no room for pieces of multiples of "
                f"{multiple_of(degree, align)} slots, as cp={cp!r} and align={align} want them.",
                "Use rows of a multiple of that.",
                setting="cp",
            )
    return tuple(map(int, degrees))


def check_rows(seq_lens: Sequence[int], cp: Sequence[int], tokens: int) -> None:
    """Raise `ConfigError` unless the batches of every bucket have a row."""
    least = max(-(-size * cp[-1] // degree) for size, degree in zip(seq_lens, cp, strict=True))
    if tokens < least:
        raise ConfigError(
            f"With cp={tuple(cp)} and batches of {tokens} tokens every rank holds "
            f"{tokens // cp[-1]}, of which a group cannot make a row of each of {tuple(seq_lens)}.",
            f"Use batch_tokens={-(-least // seq_lens[-1]) * seq_lens[-1]} or more.",
            setting="batch_tokens",
        )


def shares_of_batches(shares: Curriculum, cp: Sequence[int]) -> Curriculum:
    """The buckets' shares of the batches, from those of the tokens."""
    if len({*cp}) == 1:
        return shares
    knots = [
        (at, tuple(share / degree for share, degree in zip(knot, cp, strict=True)))
        for at, knot in shares.knots
    ]
    return Curriculum(tuple(knots), shares.repeat)


def by_length(lengths: NDArray[np.int64], longest: int) -> NDArray[np.int64]:
    """Documents of these lengths (N,) in order, each as often as it fills rows of `longest`."""
    order = lengths.argsort(kind="stable")
    return order.repeat(np.maximum(-(-lengths[order] // longest), 1))


def levels_of(turns: NDArray[np.int8], rows: NDArray[np.int64], first: int) -> NDArray[np.uint32]:
    """Where the opener of each row stands among those of its bucket, by length, in 2**-32.

    Those of a bucket's rows, over all batches, are a low-discrepancy sequence: multiples of the
    golden ratio, so any stretch of them is even.

    Args:
        turns: (N,) the buckets of a lane's batches, from its beginning.
        rows: (B,) int64, rows of a batch of each bucket.
        first: batch from which on rows are wanted.
    """
    before = np.zeros(len(turns), dtype=np.int64)
    for b in range(len(rows)):
        own = turns == b
        before[own] = np.arange(int(own.sum())) * rows[b]
    each = rows[turns[first:]]
    number = np.repeat(before[first:], each) + ranges_of(np.zeros_like(each), each)
    return (number * 2654435769 & 0xFFFFFFFF).astype(np.uint32)
