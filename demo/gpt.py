"""A small GPT in plain PyTorch with attention inside each document only.

Pre-norm blocks, rotary positions that restart with every document, and an exact softmax over the
whole vocabulary in two steps (the id's upper part, then its lower part given the upper), because
a flat one over 50,000 ids would take most of the time on two CPU cores.

Source of the two-step softmax: J. Goodman, "Classes for Fast Maximum Entropy Training" (2001).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["GPT", "document_mask"]


def document_mask(document_ids: Tensor) -> Tensor:
    """(rows, 1, seq_len, seq_len) bool: True where a token may look.

    Args:
        document_ids: (rows, seq_len), the same number within a document. Padding (-1) sees
            padding only, so that no row of the mask is empty.
    """
    same = document_ids[:, :, None] == document_ids[:, None, :]
    return same.tril().unsqueeze(1)


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.into = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """(rows, seq_len, width) to the same."""
        rows, length, width = x.shape
        parts = self.into(x).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        cosine, sine = rotation
        query, key = (torch.addcmul(t * cosine, _half_turn(t), sine) for t in (query, key))
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed: Tensor = self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return mixed


def _half_turn(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


class Block(nn.Module):
    """Attention, then a two-layer network, each on a normalised input and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, heads)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """(rows, seq_len, width) to the same."""
        x = x + self.attention(self.norms[0](x), mask, rotation)
        added: Tensor = self.network(self.norms[1](x))
        return x + added


class GPT(nn.Module):
    """The model; calling it gives the loss.

    Args:
        vocab_size: ids are below it.
        width, layers, heads: its size.
    """

    def __init__(self, vocab_size: int, width: int = 128, layers: int = 3, heads: int = 2) -> None:
        super().__init__()
        self.base = math.isqrt(vocab_size - 1) + 1  # id = upper * base + lower
        self.pairs = width // heads // 2
        self.embedding = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.upper = nn.Linear(width, self.base)
        self.lower = nn.Linear(width, self.base)
        self.given_upper = nn.Embedding(self.base, width)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Mean loss per token.

        Args:
            batch: `input_ids`, `labels` (not shifted, -100 without loss), `position_ids` and
                `document_ids`, each (rows, seq_len).
        """
        speeds = 10000.0 ** (-torch.arange(self.pairs, dtype=torch.float32) / self.pairs)
        angles = batch["position_ids"][:, None, :, None] * speeds
        angles = torch.cat((angles, angles), dim=-1)
        rotation = angles.cos(), angles.sin()
        mask = document_mask(batch["document_ids"])
        x = self.embedding(batch["input_ids"])
        for block in self.blocks:
            x = block(x, mask, rotation)
        counted = batch["labels"][:, 1:] != -100
        x = self.norm(x[:, :-1][counted])
        target = batch["labels"][:, 1:][counted]
        upper = target // self.base
        loss = functional.cross_entropy(self.upper(x), upper)
        hidden = x + self.given_upper(upper)
        return loss + functional.cross_entropy(self.lower(hidden), target % self.base)
