"""Arguments for models of transformers, by which a given one keeps documents apart.

Families differ in how they find the boundaries: most build their masks from `position_ids`, some
only honour a mask that they are given, some kernels take `seq_idx`, and some layers know no
boundaries at all. Class names do not say which (it changes with versions, attention
implementations, installed kernels and lengths), so two rows of the same length are run through the
model itself, and then as many as the batch has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from streampack.arguments import type_in_words
from streampack.batch.attention import one_segment_per_row, static_segments
from streampack.batch.hf_ways import (
    WAYS,
    Lengths,
    adds_router_loss,
    arguments_by,
    config_of,
    dtype_of,
    first_and_last_row,
    rows_of,
    unwrapped,
    usual_ids,
    with_longer_ones,
)
from streampack.batch.isolation import (
    check_isolation,
    has_images,
    largest_movement,
    of_slots,
    put_back,
    without_loss,
)
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch

#: What a document may differ from itself alone, as a share of what a token does to those after it:
#: in single precision and in half precision. Other shapes are rounded differently.
TOLERANCE, TOLERANCE_HALF = 0.05, 0.5
#: What is no movement at all, in the same measure: where shapes are the same.
_SAME = 1e-3

#: What is wrong with a way, or None, by model and by what may change about it.
_found: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], str | None]] = WeakKeyDictionary()


def hf(
    batch: PackedBatch, model: Any = None, *, seq_idx: bool = False, segments: int | None = None
) -> dict[str, Any]:
    """Arguments for a Hugging Face transformers causal LM.

    Not every family keeps documents apart by them, and none says so. Pass the `model`, and the
    arguments are those by which it does. To find them, two rows are run through it some ten
    times, and a whole batch once, without gradients: once for each model, mode, device,
    attention implementation and shape of a batch. Without a model they are:

    Flat (1, T) `input_ids`, `position_ids`, `labels`; int32 `cu_seq_lens_q` and `_k`; ints
    `max_length_q` and `_k`. FlashAttention takes the boundaries from `cu_seq_lens_q`; eager,
    SDPA and FlexAttention (from transformers 4.53 and torch 2.6 on) from `position_ids`, and
    only if there is neither an attention mask nor a cache: hence no mask, and ``use_cache`` is
    False (a model's default is True, with which documents would attend to one another).
    On several ranks, and from `PackedLoader.accumulate`, also `num_items_in_batch`, by which
    transformers divides the summed loss, so that it is as that of `loss`. A batch without any
    loss token has it always: its loss is 0 and not 0 / 0.

    With a model that needs them, also `seq_idx`, or an `attention_mask` for every row,
    (rows, 1, seq_len, seq_len) in the model's dtype, and then all is (rows, seq_len); so it is
    where every row is one segment, as with ``attention="row"`` or one document per row.
    Arguments that its `forward` does not name are left out, and so are `labels` where it does
    not take a `num_items_in_batch` that is needed: use `loss` then.

    Args:
        model: what is called with them. On several ranks all pass theirs in the same step.
        seq_idx: also give `seq_idx`, (1, T) int32, each slot's attention segment: the
            boundaries for layers of state-space and convolution models.
        segments: as in `varlen`.

    Raises:
        ConfigError: the model keeps documents apart in no way that is known; the message says
            what was tried. Or padding would enter the auxiliary loss of its routers.
    """
    if model is not None:
        return _arguments_for(model, batch, segments)
    counts: dict[str, Any] = {}
    if batch._step_items is not None or not batch.num_loss_tokens:
        counts["num_items_in_batch"] = batch.num_items_in_batch * batch.cp_size
    if seq_idx:
        counts["seq_idx"] = batch.seq_idx
    cu_seqlens, longest = static_segments(batch, segments)
    arguments = {
        **counts,
        "input_ids": batch.input_ids.view(1, -1),
        "position_ids": batch.position_ids.view(1, -1),
        "labels": batch.labels.view(1, -1),
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }
    if batch._places is None:
        return arguments
    from streampack.batch.media_arguments import with_media

    return with_media(arguments, batch)


def _arguments_for(model: Any, batch: Any, segments: int | None) -> dict[str, Any]:
    """What to call `model` with, in the first way that keeps documents apart; see `hf`.

    Raises:
        ConfigError: there is no such way; the message has what was wrong with each.
    """
    wrong: dict[str, str] = {}
    for way in WAYS:
        if way == "rows" and not one_segment_per_row(batch):
            continue
        reason = whats_wrong(model, batch, way, _tried) or _of_images(model, batch, way)
        if reason is None:
            arguments = arguments_by(model, batch, way, segments)
            if not adds_router_loss(model):
                return arguments
            from streampack.batch.hf_routers import without_padding

            return without_padding(model, batch, way, arguments, segments, wrong.get("rows"))
        if reason not in wrong.values():  # where seq_idx makes no difference
            wrong[way] = reason
    tried = "; ".join(f"{WAYS[way]}: {reason}" for way, reason in wrong.items())
    raise ConfigError(
        f"{type(unwrapped(model)).__name__} does not keep the documents of a row apart ({tried}).",
        "Install kernels that do, such as flash-linear-attention or mamba_ssm, or pack rows "
        'of one segment: attention="row" or packer=Pad(seq_len=...).',
        setting="model",
    )


def whats_wrong(
    model: Any, batch: Any, way: str, tried: Callable[[nn.Module, Any, str, Any], str | None]
) -> str | None:
    """Why documents are not kept apart, or are not as they are by themselves; None if they are.

    That is what `tried` says of the model, a batch of the shape, a way and a device. Tried once per
    model, mode, device, attention implementation and shape of the batch.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model is {type_in_words(model)}.",
            "Pass the torch module that is trained, or leave model out.",
            setting="model",
        )
    device = next((p.device for p in model.parameters() if p.is_floating_point()), None)
    if device is None or device.type == "meta" or not hasattr(config_of(model), "vocab_size"):
        lacks = "weights" if device is None or device.type == "meta" else "config.vocab_size"
        raise ConfigError(
            f"{type(unwrapped(model)).__name__} has no {lacks}, as a model of transformers has.",
            "Pass a model of transformers with its weights on a device; others take batch.varlen() "
            "or the like.",
            setting="model",
        )
    implementation = getattr(config_of(model), "_attn_implementation", None)
    shape = batch.rows, batch.seq_len, getattr(batch, "_places", None) is not None
    key = (tried, way, model.training, device, implementation, *shape)
    known = _found.setdefault(model, {})
    if key not in known:
        try:
            known[key] = tried(model, batch, way, device)
        except torch.cuda.OutOfMemoryError as error:  # may be otherwise the next time
            return f"out of memory: {error}"[:120]
        except Exception as error:  # whatever a model raises at arguments that it does not take
            said = f"{error}".strip().split("\n")[0]
            known[key] = f"{type(error).__name__}: {said[:120]}"
    return known[key]


def _tried(model: nn.Module, batch: Any, way: str, device: torch.device) -> str | None:
    chunk = getattr(config_of(model), "attention_chunk_size", None)
    seq_len, slots = batch.seq_len, batch.rows * batch.seq_len
    if way in ("positions", "seq_idx") and chunk and slots > chunk and chunk % seq_len:
        return f"chunks of {chunk} tokens are counted through the batch, not in each document"
    ids = usual_ids(model)

    def of_rows(lengths: Sequence[Lengths]) -> Any:
        rows = rows_of(lengths, seq_len, ids)
        places = getattr(batch, "_places", None)
        return type(batch)(rows._replace(media=places and places.emptied())).to(device)

    def call(batch: Any) -> Any:
        return model(**without_loss(arguments_by(model, batch, way), model))

    first, last = first_and_last_row(seq_len, whole_rows=way == "rows")
    two = of_rows([first, last] if way == "rows" or batch.rows > 1 else [first])
    found = check_isolation(model, two, call=call)
    if not found:
        where = f" in {found.layer}" if found.layer else ""
        return f"documents move one another{where}"
    with evaluated(model, device):
        longer = () if way == "rows" else with_longer_ones(model, seq_len, two.rows)
        for said, lengths in longer:
            if _first_moves(call, [of_rows(each) for each in lengths], found.context):
                return said
        alone = _in_other_padding if way == "rows" else by_itself
        if not _as_alone(model, two, call, alone, found.context):
            return "documents are not as they are by themselves (as if at other positions)"
    if batch.rows > 2:  # what is too long for the model raises
        with torch.no_grad(), put_back(model, device):
            call(of_rows([first, *[()] * (batch.rows - 2), last]))
    return None


def _of_images(model: Any, batch: Any, way: str) -> str | None:
    """Why documents with images are not as they are by themselves; None if they are.

    Tried with the first batch that has such documents, once per model and mode. Where ranks are
    connected it is not: all would have to call the model as often, and not all have images.
    """
    if not has_images(batch) or not len(batch._places.pieces):
        return None
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return None
    from streampack.batch.media_isolation import documents_moved

    known = _found.setdefault(model, {})
    key = ("images", way, model.training, getattr(config_of(model), "_attn_implementation", None))
    if key not in known:
        with evaluated(model, batch.device):
            tolerance = TOLERANCE_HALF if dtype_of(model).itemsize == 2 else TOLERANCE
            call = partial(arguments_by, model, way=way)
            known[key] = documents_moved(model, batch, lambda one: call(batch=one), tolerance)
    return known[key]


@contextmanager
def evaluated(model: nn.Module, device: torch.device) -> Iterator[None]:
    """The model without gradients and dropout, and afterwards as it was."""
    with torch.no_grad(), put_back(model, device):
        model.eval()
        yield


def _first_moves(call: Callable[[Any], Any], batches: Sequence[Any], context: float) -> bool:
    """Whether the first document has other outputs in the last batch than in the others.

    Where models compute tokens of several documents together, outputs are rounded differently with
    every change of the others; how much they move in the second batch is the measure.
    """
    at = batches[0].document_ids.view(-1) == 0
    base, same, longer = (of_slots(call(batch), len(at))[at] for batch in batches)
    rounded = float(largest_movement(base, same).max())
    moved = float(largest_movement(base, longer).max())
    return not moved <= _SAME * context + 4 * rounded


def _as_alone(
    model: nn.Module,
    batch: Any,
    call: Callable[[Any], Any],
    alone: Callable[[nn.Module, Tensor, int], Tensor],
    context: float,
) -> bool:
    """The last document of every row has the outputs that it has alone."""
    document = batch.document_ids
    tolerance = TOLERANCE_HALF if dtype_of(model).itemsize == 2 else TOLERANCE
    outputs = of_slots(call(batch), document.numel())
    for number in set(document.amax(dim=1).tolist()) - {-1}:
        at = document.view(-1) == number
        moved = largest_movement(
            outputs[at], alone(model, batch.input_ids.view(-1)[at], batch.seq_len)
        )
        if not float(moved.max()) <= tolerance * context:
            return False
    return True


def by_itself(model: nn.Module, ids: Tensor, seq_len: int) -> Tensor:
    """(n, ...) outputs of a document (n,) and nothing else."""
    return of_slots(model(input_ids=ids[None]), len(ids))


def _in_other_padding(model: nn.Module, ids: Tensor, seq_len: int) -> Tensor:
    """(n, ...) outputs of a document (n,) at the beginning of a row, before any padding.

    Its length stays, which may be what rotary frequencies follow.
    """
    row = torch.cat([ids, ids.flip(0)])[:seq_len]
    return of_slots(model(input_ids=row[None]), len(row))[: len(ids)]
