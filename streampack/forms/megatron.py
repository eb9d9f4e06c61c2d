"""Arguments of Megatron-LM: packed batches, their boundaries, and documents one by one."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from streampack.arguments import whole_number
from streampack.forms.attention import are_padding, held_slots
from streampack.forms.context_parallel import rank_of, require_multiple, segments_of

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch


def megatron(
    batch: PackedBatch,
    *,
    cp_size: int | None = None,
    cp_rank: int | None = None,
    multiple: int = 1,
) -> dict[str, Tensor | None]:
    """Return the tensors of Megatron-LM's `get_batch`, for packed (THD) attention.

    (1, T / cp_size) `tokens`, `labels` and `position_ids` int64, `loss_mask` float32 and
    `padding_mask` bool, True on padding, which `GPTModel` accepts since 0.16 and leaves out of its
    router losses, which are NaN for a batch without documents unless the model is in evaluation
    mode. `attention_mask` is None; the method `packed_seq_params` returns the boundaries.
    Labels are shifted (the next token of each slot) and 0 where `loss_mask` is 0.

    Args:
        cp_size: size of the context-parallel group; all its ranks pass the same batch. None means
            the batch's own.
        cp_rank: index of this rank, which holds a head and a tail part of every document. None
            means the batch's own.
        multiple: require that a rank holds a multiple of this number of slots: 16 for matrix
            products in FP8, 32 for MXFP8, 128 for blockwise FP8, times the tensor-parallel size
            with sequence parallelism.

    Raises:
        ConfigError: documents were not packed with ``align=2 * cp_size``; the rank does not exist;
            a rank does not hold a multiple of `multiple` slots.
    """
    cp_size, cp_rank = rank_of(batch, cp_size, cp_rank)
    require_multiple(batch, cp_size, multiple)
    tensors = _flat_tensors(batch)
    if cp_size > 1:
        ends = segments_of(batch, 2 * cp_size).cu_seqlens_padded
        held = held_slots(ends, cp_size, cp_rank, zigzag=True)
        index = torch.from_numpy(held).to(batch.device, non_blocking=True)
        tensors = {name: tensor[index] for name, tensor in tensors.items()}
    shaped: dict[str, Tensor | None] = {name: t.view(1, -1) for name, t in tensors.items()}
    return {**shaped, "attention_mask": None}


def samples(batch: PackedBatch, *, align: int = 1) -> list[dict[str, Tensor]]:
    """Return the documents one by one, in packed order, for schedulers that pack themselves.

    There is one dictionary per attention segment that is not padding, in the form of Megatron-LM's
    dynamic context parallelism: (n,) `tokens`, `labels` and `position_ids` int64, `loss_mask`
    float32 and `padding_mask` bool, as in `megatron`; `original_seq_len` and `padded_seq_len`, (1,)
    int32 on the host. `padded_seq_len` is n. Token and document fields are not included.

    Args:
        align: pad each document to a multiple of `align` slots. Added slots are True in
            `padding_mask` and 0 in the other tensors.

    Raises:
        ConfigError: `align` is not a positive integer.
    """
    align = whole_number("align", align)
    ends = batch._runs[0]
    bounds = np.stack((ends[:-1], ends[1:]), axis=1)[~are_padding(*batch._runs)]
    tensors = _flat_tensors(batch)
    samples = []
    for low, high in bounds.tolist():
        gap = (low - high) % align
        lengths = {"original_seq_len": high - low, "padded_seq_len": high - low + gap}
        samples.append(
            {
                name: pad(tensor[low:high], (0, gap), value=name == "padding_mask")
                for name, tensor in tensors.items()
            }
            | {name: torch.tensor([n], dtype=torch.int32) for name, n in lengths.items()}
        )
    return samples


def _flat_tensors(batch: PackedBatch) -> dict[str, Tensor]:
    """Return the tensors of Megatron-LM over the flattened rows, (T,) each; labels are shifted."""
    labels = batch.next_tokens().view(-1)
    counts = labels != -100
    return {
        "tokens": batch.input_ids.view(-1),
        "labels": labels.masked_fill(~counts, 0),
        "loss_mask": counts.to(torch.float32),
        "position_ids": batch.position_ids.view(-1),
        "padding_mask": batch.padding_mask.view(-1),
    }


def packed_seq_params(batch: PackedBatch, *, cp_size: int | None = None) -> dict[str, Any]:
    """Return the fields of Megatron-LM's `PackedSeqParams`, for TransformerEngine's THD attention.

    `cu_seqlens_q` and `_kv`, (segments + 1,) int32, are running sums of lengths without padding;
    `cu_seqlens_q_padded` and `_kv_padded` are the offsets of the segments in the whole batch, each
    a multiple of ``2 * cp_size`` long if `cp_size` is more than 1; `max_seqlen_q` and `_kv` are
    ints that include that padding. Mamba layers derive their `seq_idx` from `total_tokens`, an int,
    and treat a row as one sequence without it. It is omitted if the installed Megatron-LM (0.16)
    has no such field, because its Mamba layers ignore boundaries.

    Raises:
        ConfigError: as in `megatron`.
    """
    cp_size, _ = rank_of(batch, cp_size, 0)
    segments = segments_of(batch, 2 * cp_size if cp_size > 1 else 1)
    real = torch.from_numpy(segments.cu_seqlens).to(batch.device, non_blocking=True)
    placed = torch.from_numpy(segments.cu_seqlens_padded).to(batch.device, non_blocking=True)
    longest = int(np.diff(segments.cu_seqlens_padded).max())
    total = {"total_tokens": batch.rows * batch.seq_len} if _megatron_counts_tokens() else {}
    return {
        **total,
        "qkv_format": "thd",
        "cu_seqlens_q": real,
        "cu_seqlens_kv": real,
        "cu_seqlens_q_padded": placed,
        "cu_seqlens_kv_padded": placed,
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
    }


@functools.cache
def _megatron_counts_tokens() -> bool:
    """Return True if `PackedSeqParams` has `total_tokens`, or Megatron-LM is not installed."""
    try:
        module = importlib.import_module("megatron.core.packed_seq_params")
    except ImportError:
        return True
    return "total_tokens" in module.PackedSeqParams.__dataclass_fields__
