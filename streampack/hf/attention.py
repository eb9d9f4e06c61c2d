"""Ways to pass a batch's boundaries to a model of transformers, and batches to test them."""

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

from streampack.forms.attention import segment_ids
from streampack.hf.flat_arguments import flat_arguments
from streampack.packing.plan import PackingStats
from streampack.window.packed_rows import PackedRows

#: Ways to pass boundaries, in the order in which they are tried, with their words for errors.
#: "rows" passes no boundaries, since every row is one segment, possibly followed by padding.
WAYS = {
    "positions": "with position_ids",
    "seq_idx": "with seq_idx",
    "rows": "row by row",
    "mask": "with a mask",
}


#: Arguments with a value per slot.
_OF_SLOTS = {"input_ids", "position_ids", "labels", "token_type_ids"}


def is_of_transformers(model: Any) -> bool:
    """Return True for a torch module that is, or wraps, a model of transformers."""
    return isinstance(model, nn.Module) and hasattr(config_of(model), "vocab_size")


def arguments_by(model: Any, batch: Any, way: str, segments: int | None = None) -> dict[str, Any]:
    """Return the keyword arguments for `model` that pass boundaries in a given way.

    Args:
        way: a key of `WAYS`.
        segments: as in `PackedBatch.varlen`.

    Raises:
        ValueError: a mask is needed for a kind of layer that is not supported.
    """
    taken = inspect.signature(unwrapped(model).forward).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    if way in ("positions", "seq_idx"):
        arguments = _flat(model, batch, seq_idx=way == "seq_idx", segments=segments)
        wanted = {name for name in arguments if takes_any or name in taken}
    else:
        tree = hasattr(batch, "tout")
        arguments = batch._ids() if tree else _flat(model, batch)
        rows = 1 if tree and _is_flex(model) else batch.rows  # one block mask covers all rows
        for name in _OF_SLOTS & {*arguments}:
            values = arguments[name]
            if values.dim() == 3:  # the text's positions, then three axes of images
                arguments[name] = values[1:].view(3, batch.rows, batch.seq_len)
            else:
                arguments[name] = values.reshape(rows, -1)
        if way == "rows":
            # Omitted, because models count from the row's start by default.
            del arguments["position_ids"]
            if adds_router_loss(model):  # an auxiliary router loss must not count padding
                arguments["attention_mask"] = (batch.document_ids >= 0).long()
        else:
            arguments["attention_mask"] = _mask(model, batch)
        wanted = {name for name in arguments if name in taken}
        wanted |= {"num_items_in_batch"} if takes_any else set()
    if "position_ids" in arguments and (first := _first_position(model)):
        arguments["position_ids"] = arguments["position_ids"] + first
    if "num_items_in_batch" in arguments and "num_items_in_batch" not in wanted:
        wanted.discard("labels")  # the model's loss would be a mean of means, or 0 / 0
    return {name: value for name, value in arguments.items() if name in wanted}


def _flat(model: Any, batch: Any, **settings: Any) -> dict[str, Any]:
    if hasattr(batch, "tout"):
        return batch.hf(**settings)  # type: ignore[no-any-return]
    return flat_arguments(batch, model, **settings)


def takes(model: Any, name: str) -> bool:
    """Return True if the model's `forward` names this argument."""
    return name in inspect.signature(unwrapped(model).forward).parameters


def adds_router_loss(model: Any) -> bool:
    """Return True if, by its config, the model adds an auxiliary router loss to its loss."""
    named = inspect.signature(unwrapped(model).forward).parameters.get("output_router_logits")
    if named is None or named.default is not None:
        return False
    configs = config_of(model), unwrapped(model).config
    return any(getattr(config, "output_router_logits", False) for config in configs)


def _is_flex(model: Any) -> bool:
    return getattr(config_of(model), "_attn_implementation", None) == "flex_attention"


def _mask(model: Any, batch: Any) -> Any:
    """Return the additive attention mask, (rows, 1, seq_len, seq_len) in the model's dtype.

    It is 0 where a slot sees another one, and the dtype's minimum elsewhere. For trees with
    FlexAttention it is a block mask. A model with several kinds of layers gets a dictionary of
    masks by kind.

    Raises:
        ValueError: a kind of layer is not supported.
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
        raise ValueError(f"masks for {', '.join(sorted(unknown))} layers are not supported")
    if kinds == {"full_attention"}:
        return mask(None)
    return {"full_attention": mask(None), "sliding_attention": mask(window)}


def _first_position(model: Any) -> int:
    """Return the model's first position: 0, or ``padding_idx + 1`` in the family of RoBERTa."""
    for name, module in unwrapped(model).named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def dtype_of(model: Any) -> torch.dtype:
    """Return the dtype of the model's floating-point weights."""
    dtype: torch.dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return dtype


def unwrapped(model: Any) -> Any:
    """Return the model inside wrappers such as DDP, torch.compile and PEFT."""
    while True:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module) and hasattr(model, "get_base_model"):
            inner = model.get_base_model()
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def config_of(model: Any) -> Any:
    """Return the config of the model's text part, or None if it has no config."""
    config: Any = getattr(unwrapped(model), "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


#: Lengths of documents in the first and the last row, as shares of the row.
_DOCUMENTS, _WHOLE_ROWS = ((0.35, 0.45), (0.4, 0.55)), ((0.75,), (1.0,))
#: Names of settings that limit a length; models may behave differently beyond it.
_LENGTHS = re.compile(r"max_(position|seq)|^n_(positions|ctx)$|^seq_len|context_len")

Lengths = Sequence[int]


def first_and_last_row(seq_len: int, *, whole_rows: bool) -> tuple[Lengths, Lengths]:
    """Return the documents' lengths in both rows: one document each with `whole_rows`, else two."""
    first, last = (
        # Odd, so that a boundary never coincides with one of the model's chunks.
        [min(int(share * seq_len) | 1, seq_len) for share in shares]
        for shares in (_WHOLE_ROWS if whole_rows else _DOCUMENTS)
    )
    last[-1] = min(last[-1], seq_len - sum(last[:-1]))
    return first, last


def with_longer_ones(
    model: nn.Module, seq_len: int, rows: int
) -> Iterator[tuple[str, list[list[Lengths]]]]:
    """Yield triples of batches with the same first document; only the third has longer documents.

    There is one triple for each length that the model's config names, or one for half a row if it
    names no length. The other documents of the first two batches differ from one another in length,
    and neither they nor padding exceed the named length.

    Yields:
        The reason to report if the first document has other outputs in the third batch, and the
        documents' lengths in each row of the three batches.
    """
    named = _named_lengths(config_of(model).to_dict(), seq_len)
    ends = [*sorted(named), seq_len] if named else [seq_len // 2, seq_len]
    for short, long in pairwise(ends):
        reason = (
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
        room = seq_len if rows > 1 else seq_len - first
        others = (_cut(room, most), _cut(room, most // 2 + 1), _cut(room, min(long, room)))
        yield reason, [[start, other] if rows > 1 else [[*start, *other]] for other in others]


def _cut(tokens: int, most: int) -> list[int]:
    """Return lengths of at most `most` with the sum `tokens`."""
    return [min(most, tokens - at) for at in range(0, tokens, most)]


def _named_lengths(settings: dict[str, Any], seq_len: int) -> dict[int, str]:
    """Return the lengths below `seq_len` that a config names, nested settings included."""
    named: dict[int, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            named |= _named_lengths({f"{key}": inner for key, inner in value.items()}, seq_len)
        elif isinstance(value, int) and _LENGTHS.search(name) and 2 < value < seq_len:
            named[value] = name
    return named


def usual_ids(model: nn.Module) -> NDArray[np.int64]:
    """Return shuffled ids of ordinary tokens in the model's vocabulary."""
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
    """Make rows with documents of the given lengths, padded to `seq_len`."""
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
        composition=PackingStats(),
    )
