"""Slices of MagiAttention by its definition."""

from __future__ import annotations

import torch
from torch import Tensor


def times_seen(slices: dict[str, Tensor], slots: int) -> Tensor:
    """By slot and slot, the slices in which the first attends to the second, by the definition of
    MagiAttention: the last query of a causal slice sees all its keys, the one before one less."""
    assert {tensor.dtype for tensor in slices.values()} == {torch.int32}
    seen = torch.zeros(slots, slots, dtype=torch.int64)
    columns = (slices["q_ranges"].tolist(), slices["k_ranges"].tolist())
    for (q0, q1), (k0, k1), kind in zip(*columns, slices["attn_type_map"].tolist(), strict=True):
        assert q0 < q1
        assert k0 < k1
        part = torch.ones(q1 - q0, k1 - k0, dtype=torch.int64)
        seen[q0:q1, k0:k1] += part.tril(k1 - k0 - (q1 - q0)) if kind == 1 else part
    return seen
