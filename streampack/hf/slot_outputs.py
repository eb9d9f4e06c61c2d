"""A model's outputs with an entry for each slot of a batch, and how far two of them differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from streampack.errors import ConfigError
from streampack.hf.routers import slots_of


def of_slots(outputs: Any, slots: int, batch: Any = None) -> Tensor:
    """Return a model's outputs as a (T, n) tensor; those without padding need the `batch`.

    Raises:
        ConfigError: there is no floating-point tensor with an entry per slot.
    """
    logits = getattr(outputs, "logits", None)
    if logits is None and isinstance(outputs, dict):
        logits = outputs.get("logits", next(iter(outputs.values()), None))
    if logits is None:
        logits = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
    flat = flat_view(logits, slots)
    if flat is None and batch is not None:
        flat = _with_padding(logits, batch)
    if flat is None:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(
            f"The model must return floating-point outputs for all {slots} slots of the batch, got "
            f"{shape}.",
            "Pass call=, a function of the batch that returns floating-point outputs of every "
            "slot: (rows, seq_len, ...), (1, T, ...) or (T, ...).",
            setting="call",
        )
    return flat


def flat_view(tensor: Any, slots: int) -> Tensor | None:
    """Return a (T, n) view of a floating-point tensor with an entry per slot, else None."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        return None
    for leading in (1, 2):
        if tensor.dim() >= leading and tensor.shape[:leading].numel() == slots and tensor.numel():
            return tensor.reshape(slots, -1)
    return None


def parts_of(values: Tensor) -> list[Tensor]:
    """Split into 1,024 slots at a time: a copy of the logits of a large vocabulary is large."""
    return [values[first : first + 1024] for first in range(0, len(values), 1024)]


def largest_movement(base: Tensor, changed: Tensor) -> Tensor:
    """Return the largest absolute difference in each slot, (T,).

    Raises:
        ConfigError: an output is not finite.
    """
    pairs = zip(parts_of(base), parts_of(changed), strict=True)
    moved = torch.cat([(one.float() - other.float()).abs().amax(dim=1) for one, other in pairs])
    if not moved.isfinite().all():
        raise ConfigError(
            "The model must return finite outputs, but some are NaN or infinite.",
            "Look for slots with an attention mask that hides everything, or pass call= with "
            "finite outputs.",
            setting="model",
        )
    return moved


def _with_padding(outputs: Any, batch: Any) -> Tensor | None:
    """Return outputs (1, num_tokens, ...) of a batch without padding as (T, n), 0 on padding.

    None if they are not of the shape that `without_padding` gives.
    """
    if not isinstance(outputs, Tensor) or outputs.dim() < 2 or not outputs.is_floating_point():
        return None
    slots = slots_of(batch, tuple(outputs.shape[:-1]))
    if slots is None:
        return None
    full = outputs.new_zeros(batch.document_ids.numel(), outputs.shape[-1])
    full[slots.view(-1)] = outputs.reshape(-1, outputs.shape[-1])
    return full
