"""Where a packed batch's documents end, as each attention or scan takes it.

All of it is views of the batch's tensors and a few tensor operations on its device; nothing here
waits for the device.

limit_context: attention that reaches back a given number of tokens.

An attention segment ends wherever a row reaches a multiple of the limit, and where it ends anyway.
Rows, tokens, labels and so the loss are as before: the first token of a window is still predicted,
from the last one of the window before it, which saw that window. Positions count from the start of
every window, because many consumers read the boundaries off them. For rotary positions only
distances matter, which are the same.

Cost: some numpy calls on the boundaries, and a copy of them to the batch's device. Attention costs
at most the limit per token instead of the length of its document.

Source: T. Zhu et al., "SkyLadder: Better and Faster Pretraining via Context Window Scheduling"
(2025), with its released code, whose windows lie at multiples from the beginning of the row too.

FlexAttention's block mask of packed segments, made without a T x T matrix.

Inside a block of queries the segments of its first and last token say everything: keys before the
first one's start are masked, and a whole block of keys is visible to all queries if it lies after
the last one's start. So a few operations on (T / block_size,) numbers replace the evaluation of
the mask at every pair, on any device and without waiting for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from streampack.arguments import one_of, whole_number
from streampack.batch.tensors import label_positions
from streampack.documents.blocks import ranges_of
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch


def segment_block_mask(cu_seqlens: Tensor, slots: int, block_size: int) -> BlockMask:
    """Causal attention inside segments.

    Args:
        cu_seqlens: (segments + 1,) int32; entries equal to the last one may follow it.
        slots: T, tokens in the batch.
        block_size: tokens per block, of queries and of keys.

    Returns:
        A mask of shape (1, 1, T, T).
    """
    device = cu_seqlens.device
    token = torch.arange(slots, device=device, dtype=torch.int32)
    segment = torch.searchsorted(cu_seqlens, token, right=True, out_int32=True) - 1
    start = cu_seqlens[segment]
    blocks = -(-slots // block_size)
    block = torch.arange(blocks, device=device, dtype=torch.int32)
    last = torch.clamp((block + 1) * block_size, max=slots) - 1
    lowest = start[block * block_size] // block_size
    # Keys of block j are visible to the whole block i of queries if j is before i and begins in
    # the segment of i's last token.
    lowest_full = torch.minimum((start[last] + block_size - 1) // block_size, block)
    partial = lowest_full - lowest + 1  # [lowest, lowest_full) and the diagonal
    column = block[None, :]
    indices = torch.where(column < (partial - 1)[:, None], lowest[:, None] + column, block[:, None])
    full = block - lowest_full
    full_indices = lowest_full[:, None] + column
    inside, inside_full = column < partial[:, None], column < full[:, None]

    def same_segment(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (segment[query] == segment[key])

    return BlockMask.from_kv_blocks(
        partial[None, None],
        torch.where(inside, indices, 0)[None, None],
        full[None, None],
        torch.where(inside_full, full_indices, 0)[None, None],
        BLOCK_SIZE=block_size,
        mask_mod=same_segment,
        seq_lengths=(slots, slots),
    )


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
            "Reserve more, or filter out the shortest documents.",
            setting="segments",
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
            f"The segment at {starts[at]} has {lengths[at]} tokens and {follows[at]} of padding "
            f"after it, no multiple of {align}.",
            f'Pack with align={align}, or attention="row", where whole rows are split.',
            setting="align",
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


def varlen(
    batch: PackedBatch,
    api: Literal["flash_attn", "torch", "torchtitan"] = "flash_attn",
    *,
    segments: int | None = None,
) -> dict[str, Any]:
    """Sequence arguments for variable-length attention, to be passed by keyword.

    Args:
        api: "flash_attn" for `flash_attn_varlen_func` (add ``causal=True``), "torch" for
            `torch.nn.attention.varlen.varlen_attn` (add ``window_size=(-1, 0)``, which is
            how it spells causal), "torchtitan" for the fields of its `VarlenMetadata`, which
            besides has the boundaries as a tuple of ints.
        segments: give the arguments static shapes, for `torch.compile` and CUDA graphs:
            `cu_seqlens` has `segments` + 1 entries, padded with its last value, and the
            maximum is `seq_len`. The true number is `num_segments`.

    Raises:
        ConfigError: the batch has more than `segments`; `api` is unknown.
    """
    cu_seqlens, longest = static_segments(batch, segments)
    known = ("flash_attn", "torch", "torchtitan")
    one_of("api", api, known)
    names = ("cu_seq_q", "cu_seq_k", "max_q", "max_k")
    if api == "flash_attn":
        names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    arguments = dict(zip(names, (cu_seqlens, cu_seqlens, longest, longest), strict=True))
    if api == "torchtitan":
        ends = batch._runs[0].tolist()
        arguments["cu_seq_q_host"] = tuple(ends + ends[-1:] * (len(cu_seqlens) - len(ends)))
    return arguments


def fla(batch: PackedBatch, *, chunk_size: int | None = None) -> dict[str, Tensor]:
    """Boundaries for linear attention, delta rules and short convolutions of fla.

    Kernels of flash-linear-attention take them with (1, T, ...) tensors: `cu_seqlens`,
    (segments + 1,) int64 on the batch's device, and `cu_seqlens_cpu`, the same on the host, so
    that they need not wait for the device. Pass the same dictionary to all layers: fla keeps
    what it derives by the identity of these tensors.

    Args:
        chunk_size: tokens per chunk of a kernel: also give `chunk_indices`, (chunks, 2) int64
            on the device, the segment of each chunk and the chunk's number in it.

    Raises:
        ConfigError: `chunk_size` is no whole number of at least one.
    """
    ends = batch._runs[0].astype(np.int64)
    arguments = {"cu_seqlens": batch.cu_seqlens.long(), "cu_seqlens_cpu": torch.from_numpy(ends)}
    if chunk_size is not None:
        chunk_size = whole_number("chunk_size", chunk_size)
        chunks = -(-np.diff(ends) // chunk_size)
        segment = np.repeat(np.arange(len(chunks)), chunks)
        inside = np.arange(len(segment)) - (np.cumsum(chunks) - chunks)[segment]
        indices = torch.from_numpy(np.stack((segment, inside), axis=1))
        arguments["chunk_indices"] = indices.to(batch.device, non_blocking=True)
    return arguments


def next_tokens(batch: PackedBatch, depth: int = 1) -> Tensor:
    """Targets of multi-token prediction: what comes `depth` tokens later.

    (rows, seq_len) int64, shifted: compare them with what slot t predicts, without shifting.
    -100 where that lies beyond the attention segment (as it is without `limit_context`), or
    carries no loss.

    Args:
        depth: 1 is the next token.

    Raises:
        ConfigError: `depth` is no whole number of at least one.
    """
    depth = whole_number("depth", depth)
    slots = batch.rows * batch.seq_len
    inside = label_positions(batch._tensors, slots) >= depth
    labels = batch.labels.view(-1).masked_fill(~inside, -100)
    return pad(labels[depth:], (0, min(depth, slots)), value=-100).view(batch.rows, batch.seq_len)


def flex(batch: PackedBatch, block_size: int = 128) -> BlockMask:
    """The block mask for `flex_attention` over the flattened rows, (1, 1, T, T).

    Causal inside attention segments. Made in a time that grows with ``(T / block_size)**2``,
    without a T x T matrix; its shapes depend on T alone.
    """
    return segment_block_mask(batch.cu_seqlens, batch.rows * batch.seq_len, block_size)


def static_segments(batch: PackedBatch, segments: int | None) -> tuple[Tensor, int]:
    """`cu_seqlens` and its maximum, of static shape if a number of segments is given."""
    if segments is None:
        return batch.cu_seqlens, batch.max_seqlen
    slots = batch.rows * batch.seq_len
    return pad_cu_seqlens(batch.cu_seqlens, segments, slots), batch.seq_len


def segment_ids(batch: PackedBatch) -> Tensor:
    """(T,) int32, each slot's attention segment."""
    slots = batch.rows * batch.seq_len
    number = torch.arange(batch.num_segments, dtype=torch.int32, device=batch.device)
    return number.repeat_interleave(batch.cu_seqlens.diff(), output_size=slots)


def one_segment_per_row(batch: PackedBatch) -> bool:
    """Whether no row has two segments that are not padding."""
    filled = batch._runs[0][:-1][~are_padding(*batch._runs)]
    return bool((np.diff(filled // batch.seq_len) > 0).all())


def limit_context(batch: PackedBatch, tokens: int) -> PackedBatch:
    """The batch with attention segments of at most `tokens` tokens, on the same device.

    Segments are also cut at every multiple of `tokens` from the beginning of a row. Ids, labels,
    `next_tokens` and documents stay as they are; all forms of the batch follow the segments.

    Args:
        tokens: as a function of the batch's number for a schedule, in the `transform` of a loader.
            A multiple of the packer's `align` keeps segments divisible over context-parallel ranks.

    Raises:
        ConfigError: `tokens` is no whole number of at least one.
    """
    tokens = whole_number("tokens", tokens)
    if tokens >= batch.seq_len:
        return batch
    ends, boundaries, piece = batch._runs
    rows = np.arange(0, batch.rows * batch.seq_len, batch.seq_len)
    places = rows[:, None] + np.arange(0, batch.seq_len, tokens)
    ends = np.union1d(ends, places).astype(np.int32)
    # Runs are cut as well, so that a segment begins where a run does.
    cut = np.union1d(boundaries, places).astype(np.int32)
    piece = piece[np.searchsorted(boundaries, cut[:-1], side="right") - 1]
    lengths = np.diff(ends).astype(np.int64)
    real = lengths[~are_padding(ends, cut, piece)]
    arrays: dict[str, Any] = {"cu_seqlens": ends, "boundaries": cut, "piece": piece}
    counts: dict[str, Any] = {
        "max_seqlen": int(lengths.max()),
        "sum_squared_lengths": int((real**2).sum()),
    }
    packed, compact = batch._packed, None
    if packed is not None:
        uncut = packed.cu_seqlens if packed.uncut is None else packed.uncut
        packed = packed._replace(uncut=uncut, **arrays, **counts)
    else:
        on_device = {
            name: torch.from_numpy(array).to(batch.device, non_blocking=True)
            for name, array in arrays.items()
        }
        compact = {"uncut": batch.cu_seqlens, **batch._tensors, **on_device}
    return batch._with(
        _packed=packed,
        _compact=compact,
        _staged=None,
        _fields=None,
        _runs=(ends, cut, piece),
        num_segments=len(lengths),
        **counts,
    )
