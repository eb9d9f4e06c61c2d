"""A small causal transformer in float64 with attention cut by `cu_seqlens`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TinyGPT(nn.Module):
    """Two blocks; learned positions; forward gives logits for flat ids (T,)."""

    def __init__(self, vocab_size: int, width: int = 16, heads: int = 2, context: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = heads
        self.embed = nn.Embedding(vocab_size, width)
        self.places = nn.Embedding(context, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(2)
        )
        self.head = nn.Linear(width, vocab_size)
        self.double()

    def forward(self, ids: Tensor, positions: Tensor, cu_seqlens: Tensor) -> Tensor:
        lengths = cu_seqlens.diff()
        segment = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        return self.attend(ids, positions, (segment[:, None] == segment[None, :]).tril())

    def attend(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """The same with a mask (T, T) given."""
        x = self.embed(ids) + self.places(positions)
        for i in range(2):
            q, k, v = (
                part.view(len(ids), self.heads, -1).transpose(0, 1)
                for part in self.qkv[i](self.norms[2 * i](x)).chunk(3, dim=-1)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + self.out[i](y.transpose(0, 1).reshape(len(ids), -1))
            x = x + self.mlp[i](self.norms[2 * i + 1](x))
        return self.head(x)


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Next-token loss, summed; the model shifts, labels do not."""
    return nn.functional.cross_entropy(logits[:-1], labels[1:], ignore_index=-100, reduction="sum")
