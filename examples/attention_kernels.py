"""Attention kernels on packed batches, compiled once: `python examples/attention_kernels.py`.

One attention function per kernel. FlexAttention and the reference run anywhere; `varlen_attn` and
FlashAttention need a GPU. `segments=` reserves room for boundaries, so that every batch has the
same shapes: `torch.compile` makes one graph, and a CUDA graph can be replayed.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from streampack import PackedBatch, PackedDataset, PackedLoader, Topology

SEGMENTS = 64  # per batch, at most: batch_tokens over the length of short documents


def reference(q: Tensor, k: Tensor, v: Tensor, batch: PackedBatch) -> Tensor:
    """Each segment by itself; q, k and v are (T, heads, width)."""
    ends = batch.cu_seqlens.tolist()
    parts = [
        scaled_dot_product_attention(
            *(x[low:high].transpose(0, 1) for x in (q, k, v)), is_causal=True
        ).transpose(0, 1)
        for low, high in pairwise(ends)
    ]
    return torch.cat(parts)


def by_flex(q: Tensor, k: Tensor, v: Tensor, batch: PackedBatch) -> Tensor:
    """FlexAttention; a fused kernel on a GPU, where it is compiled."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    attend = compiled_flex() if q.is_cuda else flex_attention
    return attend(q, k, v, block_mask=batch.flex())[0].transpose(0, 1)


@functools.cache
def compiled_flex() -> Any:
    """FlexAttention without its matrix of scores; it has no backward pass on a CPU."""
    return torch.compile(flex_attention)


def by_varlen(q: Tensor, k: Tensor, v: Tensor, batch: PackedBatch) -> Tensor:
    """PyTorch's own variable-length attention; bfloat16 or float16 on a GPU."""
    from torch.nn.attention.varlen import varlen_attn

    lengths = batch.varlen("torch", segments=SEGMENTS)
    return varlen_attn(q, k, v, window_size=(-1, 0), **lengths)


def by_flash(q: Tensor, k: Tensor, v: Tensor, batch: PackedBatch) -> Tensor:
    """FlashAttention 2; FlashAttention 3's function has the same arguments."""
    from flash_attn import flash_attn_varlen_func

    return flash_attn_varlen_func(q, k, v, causal=True, **batch.varlen(segments=SEGMENTS))


def main() -> None:
    """Compare the kernels that run here with the reference."""
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    kernels: dict[str, Any] = {"flex": by_flex}
    if gpu:
        kernels["varlen"] = by_varlen
    documents = [[1 + i % 63] * (1 + i * 7 % 200) for i in range(200)]
    loader = PackedLoader(
        PackedDataset(documents, seq_len=512, batch_size=1, lanes=1, topology=Topology()),
        device=device,
    )
    worst = dict.fromkeys(kernels, 0.0)
    for batch in loader:
        q, k, v = torch.randn(3, 512, 4, 32, device=device, dtype=dtype)
        expected = reference(q, k, v, batch)
        for name, kernel in kernels.items():
            apart = float((kernel(q, k, v, batch) - expected).abs().max())
            worst[name] = max(worst[name], apart)
    for name, apart in worst.items():
        print(f"{name}: differs from each segment by itself by {apart:.1e} at most")


if __name__ == "__main__":
    main()
