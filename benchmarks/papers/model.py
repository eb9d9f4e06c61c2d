"""The model of the training experiments: a small GPT that reads packed batches.

Pre-norm blocks, rotary positions from the batch's `position_ids`, attention inside the batch's
segments, tied embeddings. No parameter depends on the row length or on the packing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from streampack import PackedBatch

__all__ = ["Size", "SmallGPT", "adamw", "descend", "label_losses", "segment_mask"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of a model.

    Attributes:
        vocab_size: ids are below it.
        width, layers, heads: of the blocks; expansion: of their two-layer networks.
        smeared_keys: the key of a token is mixed with the previous token's key in its segment,
            by a learnt share for each head, and keys begin as queries. Without it a model of this
            size takes thousands of steps to find the successor of a token's last occurrence.
        initial_std: of all matrices.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    expansion: int = 4
    smeared_keys: bool = False
    initial_std: float = 0.02


def segment_mask(batch: PackedBatch) -> Tensor:
    """(rows, 1, seq_len, seq_len) bool, True where a token may look: back in its segment.

    `cu_seqlens` already reflects the chosen attention: a segment is a document's piece, or a
    row; padding is a segment of its own, so no line of the mask is empty.
    """
    ends = batch.cu_seqlens
    numbers = torch.arange(len(ends) - 1, device=ends.device)
    slots = batch.rows * batch.seq_len
    segment = torch.repeat_interleave(numbers, ends.diff(), output_size=slots)
    segment = segment.view(batch.rows, batch.seq_len)
    return (segment[:, :, None] == segment[:, None, :]).tril().unsqueeze(1)


class Block(nn.Module):
    """Attention, then a two-layer network, each on a normalised input and added to it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, inner = size.width, size.expansion * size.width
        self.heads = size.heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.network = nn.Sequential(
            nn.Linear(width, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, width)
        )
        self.smear: nn.Parameter | None = None
        if size.smeared_keys:  # heads begin with different shares
            self.smear = nn.Parameter(torch.linspace(-2, 2, size.heads).view(-1, 1, 1))

    def forward(
        self, x: Tensor, mask: Tensor, cosine: Tensor, sine: Tensor, follows: Tensor
    ) -> Tensor:
        """(rows, seq_len, width) to the same."""
        rows, length, width = x.shape
        parts = self.into(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if self.smear is not None:
            share = torch.sigmoid(self.smear) * follows
            key = torch.lerp(key, functional.pad(key[:, :, :-1], (0, 0, 1, 0)), share)
        query, key = (t * cosine + _quarter_turn(t) * sine for t in (query, key))
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        added: Tensor = self.network(self.norms[1](x))
        return x + added


def _quarter_turn(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


class SmallGPT(nn.Module):
    """The model; calling it gives the logits of every label."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocab_size, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        pairs = size.width // size.heads // 2
        speeds = 10000.0 ** (-torch.arange(pairs, dtype=torch.float32) / pairs)
        self.register_buffer("speeds", speeds, persistent=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=size.initial_std)
        if size.smeared_keys:
            with torch.no_grad():
                for name, weight in self.named_parameters():
                    if name.endswith("into.weight"):
                        query, key, _ = weight.chunk(3)
                        key.copy_(query)

    def forward(self, batch: PackedBatch) -> Tensor:
        """(labels that are not -100, vocab_size) logits; the model shifts."""
        angles = batch.position_ids[:, None, :, None] * self.get_buffer("speeds")
        angles = torch.cat((angles, angles), dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        follows = (batch.position_ids > 0)[:, None, :, None].to(cosine.dtype)
        mask = segment_mask(batch)
        x = self.embedding(batch.input_ids)
        for block in self.blocks:
            x = block(x, mask, cosine, sine, follows)
        counted = batch.labels[:, 1:] != -100
        return functional.linear(self.norm(x[:, :-1][counted]), self.embedding.weight)


def label_losses(model: SmallGPT, batch: PackedBatch) -> Tensor:
    """(labels that are not -100,) float32, in nats."""
    labels = batch.labels[:, 1:]
    return functional.cross_entropy(model(batch), labels[labels != -100], reduction="none")


def adamw(model: SmallGPT) -> torch.optim.Optimizer:
    """The experiments' optimiser; `descend` sets its learning rate."""
    return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)


def descend(
    model: SmallGPT, optimizer: torch.optim.Optimizer, loss: Tensor, learning_rate: float
) -> None:
    """One step, with the gradient cut at norm 1."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
