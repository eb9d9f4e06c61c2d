"""Test whether padding enters the auxiliary loss of a model's routers of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def router_loss(outputs: Any) -> float | None:
    """Return the auxiliary loss in a model's outputs, their `aux_loss`, or None."""
    loss = getattr(outputs, "aux_loss", None)
    if loss is None and isinstance(outputs, dict):
        loss = outputs.get("aux_loss")
    return float(loss) if isinstance(loss, Tensor) and loss.numel() == 1 else None


def padding_in_router_loss(
    called: Callable[[Tensor], Any], padding: Tensor, tolerance: float
) -> float:
    """Return the effect of padding on the auxiliary loss, as a share of the effect of all tokens.

    Args:
        called: function from the slots to change, (T,) bool, to the outputs of a model.
        padding: (T,) bool, true on padding.
        tolerance: largest share that counts as rounding; it becomes 0.
    """
    changed = (torch.zeros_like(padding), ~padding, padding)
    base, tokens, others = (router_loss(called(where)) or 0.0 for where in changed)
    moved = abs(others - base)
    if moved <= tolerance * abs(tokens - base):
        return 0.0
    return moved / abs(tokens - base) if tokens != base else float("inf")
