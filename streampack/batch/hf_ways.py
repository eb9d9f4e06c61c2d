"""The ways in which a model of transformers takes the boundaries of a packed batch."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from streampack.batch.boundaries import segment_ids

#: How boundaries are passed, in the order in which they are tried, and in words. "rows" has none to
#: pass: every row is one segment, whatever padding follows.
WAYS = {
    "positions": "with position_ids",
    "seq_idx": "with seq_idx",
    "rows": "row by row",
    "mask": "with a mask",
}


def is_of_transformers(model: Any) -> bool:
    """True for a torch module with the config of a model of transformers, or one inside of it."""
    return isinstance(model, nn.Module) and hasattr(config_of(model), "vocab_size")


def arguments_by(model: Any, batch: Any, way: str, segments: int | None = None) -> dict[str, Any]:
    """The keyword arguments that `model` takes."""
    taken = inspect.signature(unwrapped(model).forward).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    if way in ("positions", "seq_idx"):
        arguments = batch.hf(seq_idx=way == "seq_idx", segments=segments)
        wanted = {name for name in arguments if takes_any or name in taken}
    else:
        arguments = batch.hf()
        for name in ("input_ids", "position_ids", "labels"):
            arguments[name] = arguments[name].view(batch.rows, batch.seq_len)
        if way == "rows":
            del arguments["position_ids"]  # they count from the row's beginning anyway
        else:
            arguments["attention_mask"] = _mask(model, batch)
        wanted = {name for name in arguments if name in taken}
        wanted |= {"num_items_in_batch"} if takes_any else set()
    if "position_ids" in arguments and (first := _first_position(model)):
        arguments["position_ids"] = arguments["position_ids"] + first
    if "num_items_in_batch" in arguments and "num_items_in_batch" not in wanted:
        wanted.discard("labels")  # its own loss would be a mean of means, or 0 / 0
    return {name: value for name, value in arguments.items() if name in wanted}


def _mask(model: Any, batch: Any) -> Tensor | dict[str, Tensor]:
    """(rows, 1, seq_len, seq_len), 0 where a slot sees another one, else the least number.

    By kind of layer where the model's are not all of one kind.
    """
    config = config_of(model)
    dtype = dtype_of(model)
    segment = segment_ids(batch).view(batch.rows, batch.seq_len)
    slot = torch.arange(batch.seq_len, device=segment.device)
    distance = slot[:, None] - slot[None, :]
    seen = (segment[:, :, None] == segment[:, None, :]) & (distance >= 0)

    def mask(window: int | None) -> Tensor:
        visible = seen if window is None else seen & (distance < window)
        hidden = torch.full(visible.shape, torch.finfo(dtype).min, dtype=dtype, device=slot.device)
        return hidden.masked_fill_(visible, 0)[:, None]

    slides = getattr(config, "use_sliding_window", True)
    window = getattr(config, "sliding_window", None) if slides else None
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds:
        return mask(window)
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise ValueError(f"what a mask of {', '.join(sorted(unknown))} layers is, is not known")
    if kinds == {"full_attention"}:
        return mask(None)
    return {"full_attention": mask(None), "sliding_attention": mask(window)}


def _first_position(model: Any) -> int:
    """0, or what the family of RoBERTa begins to count positions with."""
    for name, module in unwrapped(model).named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def dtype_of(model: Any) -> torch.dtype:
    """Of the model's weights."""
    dtype: torch.dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return dtype


def unwrapped(model: Any) -> Any:
    """The model inside of DDP, torch.compile, PEFT and the like."""
    while True:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module) and hasattr(model, "get_base_model"):
            inner = model.get_base_model()
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def config_of(model: Any) -> Any:
    """Settings of the part that reads text."""
    config: Any = getattr(unwrapped(model), "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config
