"""Document boundaries of a packed batch, in the form that each attention or scan kernel takes.

Every form is a view of the batch's tensors or takes a few tensor operations on its device, without
a synchronisation.

`limit_context` bounds how many tokens attention reaches back. An attention segment then also ends
wherever its row reaches a multiple of the limit. Rows, tokens, labels and therefore the loss are
unchanged: the first token of a window is still predicted, from the last token of the window before.
Positions count from the start of every window, because many consumers derive the boundaries from
them; rotary embeddings depend on distances alone, which stay the same. The cost is some numpy calls
on the boundaries and their copy to the batch's device. Attention then costs at most the limit per
token instead of the document's length. Source: T. Zhu et al., "SkyLadder: Better and Faster
Pretraining via Context Window Scheduling" (2025); its released code also puts windows at multiples
from the beginning of the row.

`flex` computes FlexAttention's block mask without a T x T matrix. The segments of the first and the
last token of a block of queries determine the mask: keys before the start of the first segment are
masked, and a block of keys after the start of the last segment is visible to all queries. A few
operations on (T / block_size,) numbers therefore replace evaluating the mask at every pair.
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
    """Compute the block mask of causal attention within segments.

    Args:
        cu_seqlens: (segments + 1,) int32; may be padded with copies of its last entry.
        slots: T, tokens in the batch.
        block_size: tokens per block, of queries and of keys.

    Returns:
        A `BlockMask` of shape (1, 1, T, T).
    """
    device = cu_seqlens.device
    token = torch.arange(slots, device=device, dtype=torch.int32)
    segment = torch.searchsorted(cu_seqlens, token, right=True, out_int32=True) - 1
    start = cu_seqlens[segment]
    blocks = -(-slots // block_size)
    block = torch.arange(blocks, device=device, dtype=torch.int32)
    last = torch.clamp((block + 1) * block_size, max=slots) - 1
    lowest = start[block * block_size] // block_size
    # Key block j is visible to every query of block i if j comes before i and begins in the segment
    # of i's last token.
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
    """S segments, each of real tokens followed by padding.

    Attributes:
        cu_seqlens: (S + 1,) int32, running sum of the lengths without padding.
        cu_seqlens_padded: (S + 1,) int32, segment offsets in the batch; the last entry is T.
    """

    cu_seqlens: NDArray[np.int32]
    cu_seqlens_padded: NDArray[np.int32]


def are_padding(
    cu_seqlens: NDArray[np.int32], boundaries: NDArray[np.int32], piece: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return an (n,) bool mask, True for attention segments that are padding.

    Args:
        cu_seqlens, boundaries, piece: columns of `PackedRows`.
    """
    padding: NDArray[np.bool_] = piece[np.searchsorted(boundaries, cu_seqlens[:-1])] < 0
    return padding


def pad_cu_seqlens(cu_seqlens: Tensor, segments: int, slots: int) -> Tensor:
    """Pad `cu_seqlens` to `segments` + 1 entries by appending empty segments.

    Args:
        cu_seqlens: (n + 1,) int32; the last entry is `slots`.

    Raises:
        ConfigError: n is more than `segments`.
    """
    missing = segments + 1 - len(cu_seqlens)
    if missing < 0:
        raise ConfigError(
            f"segments must be at least the number of attention segments of the batch, "
            f"{len(cu_seqlens) - 1}, got {segments}.",
            "Pass a larger segments, or filter out the shortest documents.",
            setting="segments",
        )
    return pad(cu_seqlens, (0, missing), value=slots)


def padded_segments(
    cu_seqlens: NDArray[np.int32], is_padding: NDArray[np.bool_], align: int
) -> PaddedSegments:
    """Extend each segment to a multiple of `align` by the padding that follows it.

    Args:
        cu_seqlens: (n + 1,) int32, attention segments, padding segments included.
        is_padding: (n,) bool.
        align: divisor of the length of every padded segment, in tokens. Padding beyond that remains
            a segment of its own, and its tokens count as real.

    Raises:
        ConfigError: a segment is followed by too little padding.
    """
    starts = cu_seqlens[:-1].astype(np.int64)
    lengths = np.diff(cu_seqlens).astype(np.int64)
    lacks = np.where(is_padding, 0, -lengths % align)
    follows = np.append(np.where(is_padding[1:], lengths[1:], 0), 0)
    short = np.flatnonzero(lacks > follows)
    if len(short):
        at = int(short[0])
        raise ConfigError(
            f"Segments must have a multiple of {align} tokens with their padding, but the one at "
            f"slot {starts[at]} has {lengths[at]} tokens and {follows[at]} of padding.",
            f'Pack with align={align}, or attention="row", where whole rows are split.',
            setting="align",
        )
    taken = np.concatenate(([0], lacks[:-1]))  # padding taken by the segment before
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
    """Return the slots of a context-parallel rank, (T / cp_size,) int64.

    Every segment is cut into `cp_size` equal parts, and rank r holds part r. With `zigzag` there
    are twice as many parts, and the rank also holds part ``2 * cp_size - 1 - r``, which balances
    the work of causal attention.
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
    """Return the sequence arguments of variable-length attention, to be passed by keyword.

    Args:
        api: "flash_attn" for `flash_attn_varlen_func` (add ``causal=True``), "torch" for
            `torch.nn.attention.varlen.varlen_attn` (add ``window_size=(-1, 0)``, its spelling of
            causal), "torchtitan" for the fields of its `VarlenMetadata`, which also include the
            boundaries as a tuple of ints.
        segments: pad the arguments to static shapes, for `torch.compile` and CUDA graphs:
            `cu_seqlens` gets `segments` + 1 entries, padded with its last value, and the
            maximum is `seq_len`. The unpadded number of segments is `num_segments`.

    Raises:
        ConfigError: the batch has more than `segments` segments, or `api` is unknown.
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
    """Return boundaries for the linear attention, delta rules and short convolutions of fla.

    Kernels of flash-linear-attention take them with (1, T, ...) tensors: `cu_seqlens`,
    (segments + 1,) int64 on the batch's device, and `cu_seqlens_cpu`, its copy on the host, which
    spares them a synchronisation. Pass the same dictionary to all layers, because fla caches
    derived indices by the identity of these tensors.

    Args:
        chunk_size: tokens per chunk of a kernel. If given, the result also has `chunk_indices`,
            (chunks, 2) int64 on the device: each chunk's segment and its index in the segment.

    Raises:
        ConfigError: `chunk_size` is not a positive integer.
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
    """Return targets of multi-token prediction: the token `depth` positions after each slot.

    (rows, seq_len) int64, already shifted: compare them with the prediction at slot t directly.
    -100 where the target lies beyond the attention segment (before `limit_context`) or carries no
    loss.

    Args:
        depth: distance of the target in tokens; 1 is the next token.

    Raises:
        ConfigError: `depth` is not a positive integer.
    """
    depth = whole_number("depth", depth)
    slots = batch.rows * batch.seq_len
    inside = label_positions(batch._tensors, slots) >= depth
    labels = batch.labels.view(-1).masked_fill(~inside, -100)
    return pad(labels[depth:], (0, min(depth, slots)), value=-100).view(batch.rows, batch.seq_len)


def flex(batch: PackedBatch, block_size: int = 128) -> BlockMask:
    """Return the (1, 1, T, T) block mask for `flex_attention` over the flattened rows.

    Attention is causal within attention segments. The cost grows with ``(T / block_size)**2``,
    no T x T matrix is made, and shapes depend on T alone.
    """
    return segment_block_mask(batch.cu_seqlens, batch.rows * batch.seq_len, block_size)


def static_segments(batch: PackedBatch, segments: int | None) -> tuple[Tensor, int]:
    """Return `cu_seqlens` and the longest segment, padded to static shapes if `segments` is set."""
    if segments is None:
        return batch.cu_seqlens, batch.max_seqlen
    slots = batch.rows * batch.seq_len
    return pad_cu_seqlens(batch.cu_seqlens, segments, slots), batch.seq_len


def segment_ids(batch: PackedBatch) -> Tensor:
    """Return the index of each slot's attention segment, (T,) int32."""
    return batch.seq_idx.view(-1)


def one_segment_per_row(batch: PackedBatch) -> bool:
    """Return True if every row has at most one segment besides padding."""
    filled = batch._runs[0][:-1][~are_padding(*batch._runs)]
    return bool((np.diff(filled // batch.seq_len) > 0).all())


def limit_context(batch: PackedBatch, tokens: int) -> PackedBatch:
    """Return the batch with attention segments of at most `tokens` tokens, on the same device.

    Segments are also cut at every multiple of `tokens` from the beginning of a row. Ids, labels,
    `next_tokens` and documents are unchanged; all forms of the batch use the shorter segments.

    Args:
        tokens: longest context in tokens. For a schedule compute it from the batch's step in the
            `transform` of a loader. A multiple of the packer's `align` keeps segments divisible
            over context-parallel ranks.

    Raises:
        ConfigError: `tokens` is not a positive integer.
    """
    tokens = whole_number("tokens", tokens)
    if tokens >= batch.seq_len:
        return batch
    ends, boundaries, piece = batch._runs
    rows = np.arange(0, batch.rows * batch.seq_len, batch.seq_len)
    positions = rows[:, None] + np.arange(0, batch.seq_len, tokens)
    ends = np.union1d(ends, positions).astype(np.int32)
    # Runs are cut too, because consumers expect a segment to begin where a run does.
    cut = np.union1d(boundaries, positions).astype(np.int32)
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
