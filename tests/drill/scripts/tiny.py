"""A tiny model and corpus for all scripts."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

VOCABULARY, BLOCK = 64, 16
DATA = np.random.default_rng(0).integers(0, VOCABULARY, 40_000)


class Tiny(nn.Module):
    """Two layers over running sums of embeddings, with dropout."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
        self.drop = nn.Dropout(dropout)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits (rows, positions, vocabulary)."""
        logits: torch.Tensor = self.head(self.drop(self.embed(ids).cumsum(1) / BLOCK))
        return logits


def row(index: int) -> torch.Tensor:
    """Ids of a row and of the token behind it."""
    start = index * (BLOCK + 1) % (len(DATA) - BLOCK - 1)
    return torch.from_numpy(DATA[start : start + BLOCK + 1])


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
