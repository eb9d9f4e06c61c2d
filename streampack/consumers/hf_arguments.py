"""Arguments for a given model of transformers, by which it keeps documents apart.

Families differ in how they find the boundaries: most build their masks from `position_ids`, some
only honour a mask that they are given, some kernels take `seq_idx`, and some layers know no
boundaries at all. Class names do not say which (it changes with versions, attention
implementations, installed kernels and lengths), so two rows of the same length are run through the
model itself, and then as many as the batch has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from streampack.arguments import type_in_words
from streampack.consumers.isolation import check_isolation, of_slots, put_back, without_loss
from streampack.errors import ConfigError
from streampack.packing.composition import Composition
from streampack.window.packed_rows import PackedRows

#: How boundaries are passed, in the order in which they are tried, and in words. "rows" has none to
#: pass: every row is one segment, whatever padding follows.
WAYS = {
    "positions": "with position_ids",
    "seq_idx": "with seq_idx",
    "rows": "row by row",
    "mask": "with a mask",
}

#: Documents in the first and in the last row of the batch that is tried, as shares of the row.
_DOCUMENTS, _WHOLE_ROWS = ((0.35, 0.45), (0.4, 0.55)), ((0.75,), (1.0,))
#: What a document may differ from itself alone, as a share of what a token does to those after it:
#: in single precision and in half precision. Other shapes are rounded differently.
_TOLERANCE, _TOLERANCE_HALF = 0.05, 0.5

#: What is wrong with a way, or None, by model and by what may change about it.
_found: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], str | None]] = WeakKeyDictionary()


def arguments_for(model: Any, batch: Any, segments: int | None) -> dict[str, Any]:
    """What to call `model` with, in the first way that keeps documents apart; see `hf`.

    Raises:
        ConfigError: there is no such way; the message has what was wrong with each.
    """
    wrong: dict[str, str] = {}
    for way in WAYS:
        if way == "rows" and not batch._one_segment_per_row():
            continue
        reason = _whats_wrong(model, batch, way)
        if reason is None:
            return _arguments(model, batch, way, segments)
        if reason not in wrong.values():  # where seq_idx makes no difference
            wrong[way] = reason
    tried = "; ".join(f"{WAYS[way]}: {reason}" for way, reason in wrong.items())
    raise ConfigError(
        f"{type(_unwrapped(model)).__name__} does not keep the documents of a row apart ({tried}).",
        "Documents would be trained on as if they continued one another.",
        'Pack rows that are one segment: attention="row", where documents attend to those before '
        "them in the row, or packer=Pad(seq_len=...), one document per row. Layers that know no "
        "boundaries on this device may have kernels that do (mamba_ssm, causal_conv1d, "
        "flash-linear-attention).",
    )


def is_of_transformers(model: Any) -> bool:
    """True for a torch module with the config of a model of transformers, or one inside of it."""
    return isinstance(model, nn.Module) and hasattr(_config(model), "vocab_size")


# ---------------------------------------------------------------------- the ways


def _arguments(model: Any, batch: Any, way: str, segments: int | None = None) -> dict[str, Any]:
    """The keyword arguments that `model` takes."""
    taken = inspect.signature(_unwrapped(model).forward).parameters
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
    config = _config(model)
    dtype = _dtype(model)
    segment = batch._segment_ids().view(batch.rows, batch.seq_len)
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
    for name, module in _unwrapped(model).named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def _dtype(model: Any) -> torch.dtype:
    dtype: torch.dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return dtype


def _unwrapped(model: Any) -> Any:
    """The model inside of DDP, torch.compile, PEFT and the like."""
    while True:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module) and hasattr(model, "get_base_model"):
            inner = model.get_base_model()
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _config(model: Any) -> Any:
    """Settings of the part that reads text."""
    config: Any = getattr(_unwrapped(model), "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


# ---------------------------------------------------------------------- trying them


def _whats_wrong(model: Any, batch: Any, way: str) -> str | None:
    """Why documents are not kept apart, or are not as they are by themselves; None if they are.

    Tried once per model, mode, device, attention implementation and shape of the batch.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model is {type_in_words(model)}.",
            "How it finds the boundaries of documents cannot be tried out.",
            "Pass the torch module that is trained, or leave model out.",
        )
    device = next((p.device for p in model.parameters() if p.is_floating_point()), None)
    if device is None or device.type == "meta" or not hasattr(_config(model), "vocab_size"):
        lacks = "weights" if device is None or device.type == "meta" else "config.vocab_size"
        raise ConfigError(
            f"{type(_unwrapped(model)).__name__} has no {lacks}, as a model of transformers has.",
            "How it finds the boundaries of documents cannot be tried out.",
            "Pass a model of transformers with its weights on a device; for others use "
            "batch.varlen() or what else they take, and check_isolation(model, batch, call=...).",
        )
    implementation = getattr(_config(model), "_attn_implementation", None)
    key = (way, model.training, device, implementation, batch.rows, batch.seq_len)
    known = _found.setdefault(model, {})
    if key not in known:
        try:
            known[key] = _tried(model, batch, way, device)
        except torch.cuda.OutOfMemoryError as error:  # may be otherwise the next time
            return f"out of memory: {error}"[:120]
        except Exception as error:  # whatever a model raises at arguments that it does not take
            said = f"{error}".strip().split("\n")[0]
            known[key] = f"{type(error).__name__}: {said[:120]}"
    return known[key]


def _tried(model: nn.Module, batch: Any, way: str, device: torch.device) -> str | None:
    chunk = getattr(_config(model), "attention_chunk_size", None)
    slots = batch.rows * batch.seq_len
    if way in ("positions", "seq_idx") and chunk and slots > chunk and chunk % batch.seq_len:
        return f"chunks of {chunk} tokens are counted through the batch, not in each document"
    shares, rows = (_WHOLE_ROWS, 2) if way == "rows" else (_DOCUMENTS, min(batch.rows, 2))
    ids = _ids(model)

    def of_rows(rows: int) -> Any:
        return type(batch)(_documents(shares[:rows], rows, batch.seq_len, ids)).to(device)

    other = of_rows(rows)

    def call(batch: Any) -> Any:
        return model(**without_loss(_arguments(model, batch, way)))

    found = check_isolation(model, other, call=call)
    if not found:
        where = f" in {found.layer}" if found.layer else ""
        return f"documents move one another{where}"
    if not _as_alone(model, other, call, found.context):
        return "documents are not as they are by themselves (as if at other positions)"
    if batch.rows > rows:  # what is too long for the model raises
        with torch.no_grad(), put_back(model, device):
            call(of_rows(batch.rows))
    return None


def _as_alone(model: nn.Module, batch: Any, call: Callable[[Any], Any], context: float) -> bool:
    """The last document of every row has the outputs that it has by itself."""
    document = batch.document_ids
    tolerance = _TOLERANCE_HALF if _dtype(model).itemsize == 2 else _TOLERANCE
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()  # dropout would make them differ
        with torch.no_grad():
            outputs = of_slots(call(batch), document.numel())
            for number in set(document.amax(dim=1).tolist()) - {-1}:
                at = document.view(-1) == number
                ids = batch.input_ids.view(-1)[at]
                alone = of_slots(model(input_ids=ids[None]), len(ids)).float()
                if not (outputs[at].float() - alone).abs().max() <= tolerance * context:
                    return False
    finally:
        for module, training in modes.items():
            module.training = training
    return True


def _ids(model: nn.Module) -> NDArray[np.int64]:
    """Ids that the model knows, and that mean nothing special to it."""
    config = _config(model)
    settings = {**_unwrapped(model).config.to_dict(), **config.to_dict()}
    special = {
        value
        for name, value in settings.items()
        if name.endswith(("token_id", "token_index")) and isinstance(value, int)
    }
    usual = np.setdiff1d(np.arange(min(config.vocab_size, 1000)), sorted(special))
    return np.random.default_rng(0).permutation(usual)


def _documents(
    shares: tuple[tuple[float, ...], ...], rows: int, seq_len: int, ids: NDArray[np.int64]
) -> PackedRows:
    """Documents in the first and the last row; the rest is padding."""
    ends, piece = [0], [-1]
    for row, documents in zip((0, rows - 1), shares, strict=False):
        ends.append(row * seq_len)
        piece.append(-1)
        for number, share in enumerate(documents, start=max(piece) + 1):
            # Odd, so that it is no multiple of what a model might count in.
            ends.append(min(ends[-1] + (int(share * seq_len) | 1), (row + 1) * seq_len))
            piece.append(number)
    ends.append(rows * seq_len)
    piece.append(-1)
    filled = np.flatnonzero(np.diff(ends)) + 1
    cu_seqlens = np.append(0, np.array(ends)[filled]).astype(np.int32)
    longest = np.diff(cu_seqlens)
    return PackedRows(
        seq_len=seq_len,
        tokens=np.resize(ids, rows * seq_len).astype(np.uint32),
        boundaries=cu_seqlens,
        piece=np.array(piece, np.int32)[filled],
        cu_seqlens=cu_seqlens,
        loss_mask=None,
        source_ids=np.zeros(max(piece) + 1, np.int32),
        provenance=None,
        max_seqlen=int(longest.max()),
        num_loss_tokens=1,
        sum_squared_lengths=int((longest.astype(np.int64) ** 2).sum()),
        composition=Composition(),
    )
