"""Attention segments for consumers that want them padded: in number, or each in length."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from streampack.documents.ragged import ranges_of
from streampack.errors import ConfigError


class PaddedSegments(NamedTuple):
    """S segments, each of real tokens and the padding after them.

    Attributes:
        cu_seqlens: (S + 1,) int32, running sum of the real lengths.
        cu_seqlens_padded: (S + 1,) int32, where each lies in the batch; the last entry is T.
    """

    cu_seqlens: NDArray[np.int32]
    cu_seqlens_padded: NDArray[np.int32]


def are_padding(
    cu_seqlens: NDArray[np.int32], boundaries: NDArray[np.int32], piece: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """(n,) whether each of n attention segments is padding; see `PackedRows` for the columns."""
    padding: NDArray[np.bool_] = piece[np.searchsorted(boundaries, cu_seqlens[:-1])] < 0
    return padding


def pad_cu_seqlens(cu_seqlens: Tensor, segments: int, slots: int) -> Tensor:
    """`cu_seqlens` with `segments` + 1 entries: empty segments at its end.

    Args:
        cu_seqlens: (n + 1,) int32, the last entry is `slots`.

    Raises:
        ConfigError: there are more than `segments`.
    """
    missing = segments + 1 - len(cu_seqlens)
    if missing < 0:
        raise ConfigError(
            f"This batch has {len(cu_seqlens) - 1} attention segments, and {segments} were "
            "reserved.",
            "Its boundaries do not fit in the static shape.",
            "Reserve more (batch_tokens divided by the length of short documents, and a few for "
            "padding), or filter out the shortest documents.",
        )
    return pad(cu_seqlens, (0, missing), value=slots)


def padded_segments(
    cu_seqlens: NDArray[np.int32], is_padding: NDArray[np.bool_], align: int
) -> PaddedSegments:
    """Join padding to the segment before it, as far as that makes a multiple of `align`.

    Args:
        cu_seqlens: (n + 1,) int32, attention segments, padding segments included.
        is_padding: (n,) bool.
        align: what the length of every padded segment is a multiple of. Padding beyond it stays a
            separate segment, whose tokens count as real.

    Raises:
        ConfigError: a segment is not followed by the padding that it lacks.
    """
    starts = cu_seqlens[:-1].astype(np.int64)
    lengths = np.diff(cu_seqlens).astype(np.int64)
    lacks = np.where(is_padding, 0, -lengths % align)
    follows = np.append(np.where(is_padding[1:], lengths[1:], 0), 0)
    short = np.flatnonzero(lacks > follows)
    if len(short):
        at = int(short[0])
        raise ConfigError(
            f"The segment at {starts[at]} has {lengths[at]} tokens, {follows[at]} of padding "
            f"after it, and its length must be a multiple of {align}.",
            "It cannot be split evenly over context-parallel ranks.",
            f"Pack with align={align}, as BestFitDecreasing, FirstFitDecreasing and "
            'Buckets can; or use attention="row", where whole rows are split.',
        )
    taken = np.concatenate(([0], lacks[:-1]))  # by the segment before; padding only loses
    starts, lengths = starts + taken, lengths - taken
    kept = lengths > 0
    last = cu_seqlens[-1:].astype(np.int64)
    return PaddedSegments(
        np.concatenate(([0], np.cumsum(lengths[kept]))).astype(np.int32),
        np.concatenate((starts[kept], last)).astype(np.int32),
    )


def held_slots(
    cu_seqlens_padded: NDArray[np.int32], cp_size: int, cp_rank: int, *, zigzag: bool
) -> NDArray[np.int64]:
    """(T / cp_size,) int64: which slots a context-parallel rank holds.

    Every segment is cut into `cp_size` equal parts, of which rank r holds part r; with `zigzag`
    into twice as many, and it also holds part ``2 * cp_size - 1 - r``, so that the work of causal
    attention is even.
    """
    held = [cp_rank, 2 * cp_size - 1 - cp_rank] if zigzag else [cp_rank]
    starts = cu_seqlens_padded[:-1].astype(np.int64)
    part = np.diff(cu_seqlens_padded).astype(np.int64) // (cp_size * len(held))
    first = np.stack([starts + number * part for number in held], axis=1)
    return ranges_of(first.ravel(), np.repeat(part, len(held)))
