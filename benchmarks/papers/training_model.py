"""The model of the training experiment: a small GPT that reads packed batches.

Pre-norm blocks, rotary positions from the batch's `position_ids`, attention inside the batch's
segments, tied embeddings. No parameter depends on the row length or on the packing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from streampack import PackedBatch

__all__ = ["SmallGPT", "losses", "mean_loss", "segment_mask"]


def segment_mask(batch: PackedBatch) -> Tensor:
    """(rows, 1, seq_len, seq_len) bool, True where a token may look: back in its segment.

    `cu_seqlens` already says which attention was chosen: a segment is a document's piece, or a
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

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """(rows, seq_len, width) to the same."""
        rows, length, width = x.shape
        parts = self.into(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        query, key = (t * cosine + _quarter_turn(t) * sine for t in (query, key))
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        added: Tensor = self.network(self.norms[1](x))
        return x + added


def _quarter_turn(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


class SmallGPT(nn.Module):
    """The model; calling it gives the loss of every label.

    Args:
        vocab_size: ids are below it.
        width, layers, heads: its size.
    """

    def __init__(self, vocab_size: int, *, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        pairs = width // heads // 2
        speeds = 10000.0 ** (-torch.arange(pairs, dtype=torch.float32) / pairs)
        self.register_buffer("speeds", speeds, persistent=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, batch: PackedBatch) -> Tensor:
        """(labels that are not -100,) float32 losses; the model shifts."""
        angles = batch.position_ids[:, None, :, None] * self.get_buffer("speeds")
        angles = torch.cat((angles, angles), dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        mask = segment_mask(batch)
        x = self.embedding(batch.input_ids)
        for block in self.blocks:
            x = block(x, mask, cosine, sine)
        labels = batch.labels[:, 1:]
        counted = labels != -100
        logits = functional.linear(self.norm(x[:, :-1][counted]), self.embedding.weight)
        return functional.cross_entropy(logits.float(), labels[counted], reduction="none")


def losses(model: SmallGPT, batch: PackedBatch) -> Tensor:
    """The model's losses; on a GPU its matrix products are in bfloat16."""
    kind = batch.device.type
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
        found: Tensor = model(batch)
    return found


@torch.no_grad()
def mean_loss(model: SmallGPT, batches: Iterable[PackedBatch]) -> float:
    """Over all labels of the batches, in nats."""
    total, count = 0.0, 0
    for batch in batches:
        found = losses(model, batch)
        total += float(found.double().sum())
        count += len(found)
    return total / count
