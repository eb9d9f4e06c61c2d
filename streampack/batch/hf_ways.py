"""How a model of transformers takes the boundaries of a batch, and batches to find that out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from streampack.batch.attention import segment_ids
from streampack.packing.plan import Composition
from streampack.window.packed_rows import PackedRows

#: How boundaries are passed, in the order in which they are tried, and in words. "rows" has none to
#: pass: every row is one segment, whatever padding follows.
WAYS = {
    "positions": "with position_ids",
    "seq_idx": "with seq_idx",
    "rows": "row by row",
    "mask": "with a mask",
}


#: Arguments with a value per slot.
_OF_SLOTS = {"input_ids", "position_ids", "labels", "token_type_ids"}


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
        tree = hasattr(batch, "tout")
        arguments = batch._ids() if tree else batch.hf()
        rows = 1 if tree and _is_flex(model) else batch.rows  # a block mask is of all rows
        for name in _OF_SLOTS & {*arguments}:
            values = arguments[name]
            if values.dim() == 3:  # three axes, and before them the text's positions
                arguments[name] = values[1:].view(3, batch.rows, batch.seq_len)
            else:
                arguments[name] = values.reshape(rows, -1)
        if way == "rows":
            del arguments["position_ids"]  # they count from the row's beginning anyway
            if adds_router_loss(model):  # in which padding has no part
                arguments["attention_mask"] = (batch.document_ids >= 0).long()
        else:
            arguments["attention_mask"] = _mask(model, batch)
        wanted = {name for name in arguments if name in taken}
        wanted |= {"num_items_in_batch"} if takes_any else set()
    if "position_ids" in arguments and (first := _first_position(model)):
        arguments["position_ids"] = arguments["position_ids"] + first
    if "num_items_in_batch" in arguments and "num_items_in_batch" not in wanted:
        wanted.discard("labels")  # its own loss would be a mean of means, or 0 / 0
    return {name: value for name, value in arguments.items() if name in wanted}


def takes(model: Any, name: str) -> bool:
    """True if the model's `forward` names this argument."""
    return name in inspect.signature(unwrapped(model).forward).parameters


def adds_router_loss(model: Any) -> bool:
    """Whether `forward` adds an auxiliary loss of routers to the loss, by the model's config."""
    named = inspect.signature(unwrapped(model).forward).parameters.get("output_router_logits")
    if named is None or named.default is not None:
        return False
    configs = config_of(model), unwrapped(model).config
    return any(getattr(config, "output_router_logits", False) for config in configs)


def _is_flex(model: Any) -> bool:
    return getattr(config_of(model), "_attn_implementation", None) == "flex_attention"


def _mask(model: Any, batch: Any) -> Any:
    """(rows, 1, seq_len, seq_len), 0 where a slot sees another one, else the least number.

    Of trees for FlexAttention, block masks. By kind of layer where the model's are not all of one
    kind.
    """
    config = config_of(model)
    dtype = dtype_of(model)
    position = batch.position_ids
    tree = hasattr(batch, "tout")
    flex = tree and _is_flex(model)
    if flex:
        seen = torch.empty(0)
    elif tree:
        seen = batch.mask()[:, 0]
    else:
        segment = segment_ids(batch).view(batch.rows, batch.seq_len)
        seen = (segment[:, :, None] == segment[:, None, :]).tril()

    def mask(window: int | None) -> Any:
        if flex:
            return batch.flex(window=window)
        visible = seen
        if window is not None:
            visible = seen & (position[:, :, None] - position[:, None, :] < window)
        hidden = torch.full(visible.shape, torch.finfo(dtype).min, dtype=dtype, device=seen.device)
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


#: Documents of the first and of the last row, as shares of the row.
_DOCUMENTS, _WHOLE_ROWS = ((0.35, 0.45), (0.4, 0.55)), ((0.75,), (1.0,))
#: Names of settings that say up to which length a model does one thing.
_LENGTHS = re.compile(r"max_(position|seq)|^n_(positions|ctx)$|^seq_len|context_len")

Lengths = Sequence[int]


def first_and_last_row(seq_len: int, *, whole_rows: bool) -> tuple[Lengths, Lengths]:
    """Lengths of the documents of both rows: several each, or one where `whole_rows` says so."""
    first, last = (
        # Odd, so that it is no multiple of what a model might count in.
        [min(int(share * seq_len) | 1, seq_len) for share in shares]
        for shares in (_WHOLE_ROWS if whole_rows else _DOCUMENTS)
    )
    last[-1] = min(last[-1], seq_len - sum(last[:-1]))
    return first, last


def with_longer_ones(
    model: nn.Module, seq_len: int, rows: int
) -> Iterator[tuple[str, list[list[Lengths]]]]:
    """Batches of which the first document is the same, and the last one of the third is longer.

    Three for each length that the model's config names, and for half a row if it names none: the
    first two have other documents of at most that length, but not of the same ones. No padding is
    longer either.

    Yields:
        What it says if the first document has other outputs in the third, and the lengths of the
        documents in each row of the three.
    """
    named = _named_lengths(config_of(model).to_dict(), seq_len)
    ends = [*sorted(named), seq_len] if named else [seq_len // 2, seq_len]
    for short, long in pairwise(ends):
        said = (
            f"one of more than {short} tokens ({named[short]}) changes the others, so use rows of "
            f"at most {short} tokens"
            if named
            else "long ones change others"
        )
        most = short - 1
        first = most if rows > 1 else min(most, seq_len - short - 1)
        if first < 2:
            continue
        start = [first, *_cut(seq_len - first, most)] if rows > 1 else [first]
        rest = seq_len if rows > 1 else seq_len - first
        others = (_cut(rest, most), _cut(rest, most // 2 + 1), _cut(rest, min(long, rest)))
        yield said, [[start, other] if rows > 1 else [[*start, *other]] for other in others]


def _cut(tokens: int, most: int) -> list[int]:
    """Lengths of at most `most` that add up to `tokens`."""
    return [min(most, tokens - at) for at in range(0, tokens, most)]


def _named_lengths(settings: dict[str, Any], seq_len: int) -> dict[int, str]:
    """Lengths of less than a row that a config names, also inside of other settings."""
    named: dict[int, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            named |= _named_lengths({f"{key}": inner for key, inner in value.items()}, seq_len)
        elif isinstance(value, int) and _LENGTHS.search(name) and 2 < value < seq_len:
            named[value] = name
    return named


def usual_ids(model: nn.Module) -> NDArray[np.int64]:
    """Ids that the model knows, and that mean nothing special to it."""
    config = config_of(model)
    settings = {**unwrapped(model).config.to_dict(), **config.to_dict()}
    special = {
        value
        for name, value in settings.items()
        if name.endswith(("token_id", "token_index")) and isinstance(value, int)
    }
    usual = np.setdiff1d(np.arange(min(config.vocab_size, 1000)), sorted(special))
    return np.random.default_rng(0).permutation(usual)


def rows_of(lengths: Sequence[Lengths], seq_len: int, ids: NDArray[np.int64]) -> PackedRows:
    """Rows of documents of these lengths; the rest of each is padding."""
    runs: list[int] = []
    piece: list[int] = []
    for row in lengths:
        first = max(piece, default=-1) + 1
        runs += [*row, seq_len - sum(row)]
        piece += [*range(first, first + len(row)), -1]
    filled = np.flatnonzero(runs)
    sizes = np.array(runs, np.int64)[filled]
    cu_seqlens = np.append(0, np.cumsum(sizes)).astype(np.int32)
    return PackedRows(
        seq_len=seq_len,
        tokens=np.resize(ids, len(lengths) * seq_len).astype(np.uint32),
        boundaries=cu_seqlens,
        piece=np.array(piece, np.int32)[filled],
        cu_seqlens=cu_seqlens,
        loss_mask=None,
        source_ids=np.zeros(max(piece) + 1, np.int32),
        provenance=None,
        max_seqlen=int(sizes.max()),
        num_loss_tokens=1,
        sum_squared_lengths=int((sizes**2).sum()),
        composition=Composition(),
    )
