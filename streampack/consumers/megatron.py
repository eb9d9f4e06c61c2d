"""What Megatron-LM's `get_batch` returns and its `PackedSeqParams`, of a packed batch."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from streampack.arguments import whole_number
from streampack.consumers.context_parallel import check_rank, segments_of
from streampack.consumers.padded_segments import are_padding, held_slots


def megatron_batch(batch: Any, cp_size: int, cp_rank: int) -> dict[str, Tensor | None]:
    """See `BatchAdapters.megatron`."""
    check_rank(cp_size, cp_rank)
    tensors = _flat_tensors(batch)
    if cp_size > 1:
        ends = segments_of(batch, 2 * cp_size).cu_seqlens_padded
        held = held_slots(ends, cp_size, cp_rank, zigzag=True)
        index = torch.from_numpy(held).to(batch.device, non_blocking=True)
        tensors = {name: tensor[index] for name, tensor in tensors.items()}
    shaped: dict[str, Tensor | None] = {name: t.view(1, -1) for name, t in tensors.items()}
    return {**shaped, "attention_mask": None}


def megatron_samples(batch: Any, align: int) -> list[dict[str, Tensor]]:
    """See `BatchAdapters.samples`."""
    align = whole_number("align", align, "A sample's length is a multiple of it.")
    ends = batch._runs[0]
    bounds = np.stack((ends[:-1], ends[1:]), axis=1)[~are_padding(*batch._runs)]
    tensors = _flat_tensors(batch)
    samples = []
    for low, high in bounds.tolist():
        gap = (low - high) % align
        lengths = {"original_seq_len": high - low, "padded_seq_len": high - low + gap}
        samples.append(
            {name: pad(tensor[low:high], (0, gap)) for name, tensor in tensors.items()}
            | {name: torch.tensor([n], dtype=torch.int32) for name, n in lengths.items()}
        )
    return samples


def _flat_tensors(batch: Any) -> dict[str, Tensor]:
    """(T,) each, labels shifted, and 0 where they do not count."""
    labels = batch.next_tokens().view(-1)
    counts = labels != -100
    return {
        "tokens": batch.input_ids.view(-1),
        "labels": labels.masked_fill(~counts, 0),
        "loss_mask": counts.to(torch.float32),
        "position_ids": batch.position_ids.view(-1),
    }


def packed_seq_params(batch: Any, cp_size: int) -> dict[str, Any]:
    """See `KernelBoundaries.packed_seq_params`."""
    check_rank(cp_size)
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
    """Whether `PackedSeqParams` has `total_tokens`; also where Megatron-LM is not installed."""
    try:
        module = importlib.import_module("megatron.core.packed_seq_params")
    except ImportError:
        return True
    return "total_tokens" in module.PackedSeqParams.__dataclass_fields__
