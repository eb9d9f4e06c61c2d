"""Arguments for a given model of transformers, by which it keeps documents apart.

Families differ in how they find the boundaries: most build their masks from `position_ids`, some
only honour a mask that they are given, some kernels take `seq_idx`, and some layers know no
boundaries at all. Class names do not say which (it changes with versions, attention
implementations and installed kernels), so a tiny batch is run through the model itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from streampack.consumers.isolation import check_isolation, of_slots
from streampack.errors import ConfigError
from streampack.packing.composition import Composition
from streampack.window.packed_rows import PackedRows

__all__ = ["arguments_for"]

#: How boundaries are passed, in the order in which they are tried. "rows" has none to pass: every
#: row is one segment, whatever padding follows.
Way = Literal["positions", "seq_idx", "rows", "mask"]
WAYS: tuple[Way, ...] = ("positions", "seq_idx", "rows", "mask")

#: Documents in the rows of a tiny batch; the first two are the same.
_DOCUMENTS, _WHOLE_ROWS = ((8, 8), (7, 11)), ((15,), (20,))
_TINY_SEQ_LEN = 20
#: What the same document may differ by at another place, as a share of what tokens do to others.
_TWIN_TOLERANCE = 0.1

#: What is wrong with a way, or None, by model and by what may change about it.
_found: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], str | None]] = WeakKeyDictionary()


def arguments_for(model: Any, batch: Any, segments: int | None) -> dict[str, Any]:
    """What to call `model` with, in the first way that keeps documents apart.

    Args:
        model: of transformers, or what wraps one; on its device.
        batch: a `PackedBatch`, on any device.
        segments: as in `BatchAdapters.varlen`.

    Raises:
        ConfigError: there is no such way; the message has what was wrong with each.
    """
    wrong: dict[Way, str] = {}
    for way in WAYS:
        if way == "rows" and not batch._one_segment_per_row():
            continue
        reason = _whats_wrong(model, batch, way)
        if reason is None:
            return _arguments(model, batch, way, segments)
        if reason not in wrong.values():  # where seq_idx makes no difference
            wrong[way] = reason
    tried = "; ".join(f"{_NAMES[way]}: {reason}" for way, reason in wrong.items())
    raise ConfigError(
        f"{type(_unwrapped(model)).__name__} does not keep the documents of a row apart ({tried}).",
        "Documents would be trained on as if they continued one another.",
        'Pack rows that are one segment: attention="row", where documents attend to those before '
        "them in the row, or packer=Pad(seq_len=...), one document per row. Layers that know no "
        "boundaries on this device may have kernels that do (mamba_ssm, causal_conv1d, "
        "flash-linear-attention).",
    )


_NAMES = {
    "positions": "with position_ids",
    "seq_idx": "with seq_idx",
    "rows": "row by row",
    "mask": "with a mask",
}


# ---------------------------------------------------------------------- the ways


def _arguments(model: Any, batch: Any, way: Way, segments: int | None = None) -> dict[str, Any]:
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
        if way == "mask":
            arguments["attention_mask"] = _mask(model, batch)
        wanted = {name for name in arguments if name in taken}
        wanted |= {"num_items_in_batch"} if takes_any else set()
    if "num_items_in_batch" in arguments and "num_items_in_batch" not in wanted:
        wanted.discard("labels")  # its own loss would be a mean of means, or 0 / 0
    return {name: value for name, value in arguments.items() if name in wanted}


def _mask(model: Any, batch: Any) -> Tensor | dict[str, Tensor]:
    """(rows, 1, seq_len, seq_len), 0 where a slot sees another one, else the least number.

    By kind of layer where the model's are not all of one kind.
    """
    config = _config(model)
    dtype = next(each.dtype for each in model.parameters() if each.is_floating_point())
    segment = batch._segment_ids().view(batch.rows, batch.seq_len)
    slot = torch.arange(batch.seq_len, device=segment.device)
    behind = slot[:, None] - slot[None, :]
    seen = (segment[:, :, None] == segment[:, None, :]) & (behind >= 0)

    def mask(window: int | None) -> Tensor:
        visible = seen if window is None else seen & (behind < window)
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


def _whats_wrong(model: Any, batch: Any, way: Way) -> str | None:
    """Why documents are not kept apart, or are not as they are by themselves; None if they are.

    Looked up once per model, mode, device and attention implementation.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model is a {type(model).__name__}.",
            "How it finds the boundaries of documents cannot be tried out.",
            "Pass the torch module that is trained, or leave model out.",
        )
    device = next(model.parameters()).device
    implementation = getattr(_config(model), "_attn_implementation", None)
    key = (way, model.training, device, implementation)
    known = _found.setdefault(model, {})
    if key not in known:
        try:
            known[key] = _tried(model, type(batch), way, device)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a model raises at arguments that it does not take
            said = f"{error}".strip().split("\n")[0]
            known[key] = f"{type(error).__name__}: {said[:120]}"
    return known[key]


def _tried(
    model: nn.Module, kind: Callable[[PackedRows], Any], way: Way, device: Any
) -> str | None:
    lengths = _WHOLE_ROWS if way == "rows" else _DOCUMENTS
    tiny = kind(_tiny_rows(lengths, _ids(model))).to(device)

    def call(batch: Any) -> Any:
        arguments = _arguments(model, batch, way)
        arguments.pop("labels", None)
        arguments.pop("num_items_in_batch", None)
        return model(**arguments)

    found = check_isolation(model, tiny, call=call)
    if not found:
        where = f" in {found.layer}" if found.layer else ""
        return f"documents move one another{where}"
    if way != "rows" and not _same_anywhere(model, lambda: call(tiny), found.context):
        return "a document is not the same at another place in the row"
    return None


def _same_anywhere(model: nn.Module, call: Callable[[], Any], context: float) -> bool:
    """The first two documents of a tiny batch, which are the same, have the same outputs."""
    modes = {module: module.training for module in model.modules()}
    length = _DOCUMENTS[0][0]
    try:
        model.eval()  # dropout would make them differ
        with torch.no_grad():
            outputs = of_slots(call(), _TINY_SEQ_LEN * len(_DOCUMENTS)).float()
    finally:
        for module, training in modes.items():
            module.training = training
    apart = (outputs[:length] - outputs[length : 2 * length]).abs().max()
    return bool(apart <= _TWIN_TOLERANCE * context)


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


def _tiny_rows(lengths: tuple[tuple[int, ...], ...], ids: NDArray[np.int64]) -> PackedRows:
    """A row for each tuple of documents' lengths; the rest is padding."""
    tokens = np.resize(ids, (len(lengths), _TINY_SEQ_LEN))
    ends: list[int] = [0]
    piece: list[int] = []
    for row, documents in enumerate(lengths):
        for length in documents:
            ends.append(ends[-1] + length)
            piece.append(max(piece, default=-1) + 1)
        if ends[-1] < (row + 1) * _TINY_SEQ_LEN:
            ends.append((row + 1) * _TINY_SEQ_LEN)
            piece.append(-1)
    if len(lengths[0]) > 1:
        tokens[0, lengths[0][0] :][: lengths[0][1]] = tokens[0, : lengths[0][1]]
    cu_seqlens = np.array(ends, np.int32)
    longest = np.diff(cu_seqlens)
    documents_found = max(piece) + 1
    return PackedRows(
        seq_len=_TINY_SEQ_LEN,
        tokens=tokens.reshape(-1).astype(np.uint32),
        boundaries=cu_seqlens,
        piece=np.array(piece, np.int32),
        cu_seqlens=cu_seqlens,
        loss_mask=None,
        source_ids=np.zeros(documents_found, np.int32),
        provenance=None,
        max_seqlen=int(longest.max()),
        num_loss_tokens=1,
        sum_squared_lengths=int((longest**2).sum()),
        composition=Composition(),
    )
