"""Arguments with which a given model of transformers keeps documents apart.

Families differ in how they find the boundaries: most build their masks from `position_ids`, some
only honour an explicit mask, some kernels take `seq_idx`, and some layers ignore boundaries. The
class name does not determine which (it changes with versions, attention implementations, installed
kernels and lengths), so the model itself is tried: first on two rows of the batch's length, then on
as many rows as the batch has.
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
from streampack.errors import ConfigError
from streampack.forms.attention import one_segment_per_row
from streampack.forms.image_columns import images_of
from streampack.hf.attention import (
    WAYS,
    Lengths,
    adds_router_loss,
    arguments_by,
    config_of,
    dtype_of,
    first_and_last_row,
    rows_of,
    takes,
    unwrapped,
    usual_ids,
    with_longer_ones,
)
from streampack.hf.flat_arguments import flat_arguments
from streampack.hf.isolation import (
    check_isolation,
    restored_module,
    without_loss,
)
from streampack.hf.slot_outputs import largest_movement, of_slots

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch

#: Largest difference between a packed document's outputs and its outputs alone, as a share of a
#: token's effect on later tokens, in single and in half precision. It is not 0 because kernels
#: round differently for other shapes.
TOLERANCE, TOLERANCE_HALF = 0.05, 0.5
#: The same limit where shapes are equal, so that rounding is too.
_SAME = 1e-3

#: By model, then by mode, device, attention implementation and shape: why a way of passing
#: boundaries fails, or None if it works.
_found: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], str | None]] = WeakKeyDictionary()


def hf(
    batch: PackedBatch, model: Any = None, *, seq_idx: bool = False, segments: int | None = None
) -> dict[str, Any]:
    """Return keyword arguments for a causal language model of Hugging Face transformers.

    Model families find document boundaries in different ways, and some ignore them without a
    warning. Pass `model` to get the arguments with which this model keeps documents apart. To find
    them, two rows are run through it about ten times and a whole batch once, without gradients,
    for every new combination of model, mode, device, attention implementation and batch shape.

    Without a model the arguments are flat (1, T) `input_ids`, `position_ids` and `labels`; int32
    `cu_seq_lens_q` and `_k`; ints `max_length_q` and `_k`. FlashAttention takes the boundaries from
    `cu_seq_lens_q`; eager, SDPA and FlexAttention (since transformers 4.53 and torch 2.6) take them
    from `position_ids`, and only without an attention mask and a cache. So there is no mask, and
    ``use_cache`` is False: with a model's default, True, documents would attend to one another.
    On several ranks, and from `PackedLoader.accumulate`, there is also `num_items_in_batch`, the
    divisor of the summed loss in transformers, which makes it equal to `loss`. A batch without a
    loss token always has it, so that its loss is 0 instead of 0 / 0.

    A model that needs it gets `seq_idx`, or an `attention_mask` per row, (rows, 1, seq_len,
    seq_len) in the model's dtype. With a mask the other arguments are (rows, seq_len), as they are
    where every row is one segment (``attention="row"``, or one document per row). Arguments that
    `forward` does not name are left out; so are `labels` if it does not take a required
    `num_items_in_batch`. Use `loss` then.

    Args:
        model: the model that will be called. On several ranks every rank passes its model in the
            same step.
        seq_idx: add `seq_idx`, (1, T) int32, each slot's attention segment: the boundaries for
            layers of state-space and convolution models. Not needed with `model`.
        segments: as in `varlen`.

    Raises:
        ConfigError: no known way keeps documents apart in this model (the message lists the
            reasons), or padding would enter the auxiliary loss of its routers.
    """
    if model is not None:
        return _arguments_for(model, batch, segments)
    return flat_arguments(batch, seq_idx=seq_idx, segments=segments)


def _arguments_for(model: Any, batch: Any, segments: int | None) -> dict[str, Any]:
    """Return the arguments of the first way that keeps documents apart in `model`; see `hf`.

    Raises:
        ConfigError: every way fails; the message lists the reasons.
    """
    wrong: dict[str, str] = {}
    for way in WAYS:
        if way == "rows" and not one_segment_per_row(batch):
            continue
        reason = explain_mismatch(model, batch, way, _tried) or _of_images(model, batch, way)
        if reason is None:
            arguments = arguments_by(model, batch, way, segments)
            if not adds_router_loss(model):
                return arguments
            from streampack.hf.routers import without_padding

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


def explain_mismatch(
    model: Any, batch: Any, way: str, tried: Callable[[nn.Module, Any, str, Any], str | None]
) -> str | None:
    """Return why a way of passing boundaries fails for a model, or None if it works.

    It works if documents are kept apart and have the outputs that they have alone. Results are
    cached by model, mode, device, attention implementation and batch shape.

    Args:
        way: a key of `WAYS`.
        tried: the test, called with the model, the batch, the way and the device.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model must be a torch module, got {type_in_words(model)}.",
            "Pass the module that is trained, or omit model.",
            setting="model",
        )
    device = next((p.device for p in model.parameters() if p.is_floating_point()), None)
    if device is None or device.type == "meta" or not hasattr(config_of(model), "vocab_size"):
        lacks = "weights" if device is None or device.type == "meta" else "config.vocab_size"
        raise ConfigError(
            f"model must be a model of transformers, but {type(unwrapped(model)).__name__} has no "
            f"{lacks}.",
            "Pass a model of transformers with its weights on a device; for others use "
            "batch.varlen() or another form of the batch.",
            setting="model",
        )
    implementation = getattr(config_of(model), "_attn_implementation", None)
    shape = batch.rows, batch.seq_len, images_of(batch) is not None
    key = (tried, way, model.training, device, implementation, *shape)
    reasons = _found.setdefault(model, {})
    if key not in reasons:
        try:
            reasons[key] = tried(model, batch, way, device)
        except torch.cuda.OutOfMemoryError as error:  # not cached: memory may be free next time
            return f"out of memory: {error}"[:120]
        except Exception as error:  # models raise anything at arguments that they do not take
            message = f"{error}".strip().split("\n")[0]
            reasons[key] = f"{type(error).__name__}: {message[:120]}"
    return reasons[key]


def _tried(model: nn.Module, batch: Any, way: str, device: torch.device) -> str | None:
    chunk = getattr(config_of(model), "attention_chunk_size", None)
    seq_len, slots = batch.seq_len, batch.rows * batch.seq_len
    ids, images = usual_ids(model), images_of(batch)

    def of_rows(lengths: Sequence[Lengths]) -> Any:
        rows = rows_of(lengths, seq_len, ids)
        attached = {} if images is None else {"media": images.emptied()}
        return type(batch)(rows._replace(attached=attached)).to(device)

    def call(batch: Any) -> Any:
        return model(**without_loss(arguments_by(model, batch, way), model))

    first, last = first_and_last_row(seq_len, whole_rows=way == "rows")
    two = of_rows([first, last] if way == "rows" or batch.rows > 1 else [first])
    isolation = check_isolation(model, two, call=call)
    if not isolation:
        where = f" in {isolation.layer}" if isolation.layer else ""
        return f"documents move one another{where}"
    with evaluated(model, device):
        longer = () if way == "rows" else with_longer_ones(model, seq_len, two.rows)
        for reason, lengths in longer:
            if _first_moves(call, [of_rows(each) for each in lengths], isolation.context):
                return reason
        alone = _in_other_padding if way == "rows" else by_itself
        if way in ("positions", "seq_idx") and chunk and slots > chunk and chunk % seq_len:
            crossed = of_rows(_across(chunk, seq_len))
            if not _as_alone(model, crossed, call, alone, isolation.context):
                return f"chunks of {chunk} tokens are counted through the batch"
        if not _as_alone(model, two, call, alone, isolation.context):
            return "documents are not as they are by themselves (as if at other positions)"
    if batch.rows > 2:  # raises if the whole batch is too long for the model
        with torch.no_grad(), restored_module(model, device):
            call(of_rows([first, *[()] * (batch.rows - 2), last]))
    return None


def _of_images(model: Any, batch: Any, way: str) -> str | None:
    """Return how packing changes documents with images, or None if it does not.

    Tried on the first batch with such documents, once per model and mode. Skipped on connected
    ranks: all would have to call the model equally often, and some may have no images.
    """
    images = images_of(batch)
    if images is None or not len(images.pieces):
        return None
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return None
    from streampack.hf.image_isolation import documents_moved

    reasons = _found.setdefault(model, {})
    key = ("images", way, model.training, getattr(config_of(model), "_attn_implementation", None))
    if key not in reasons:
        with evaluated(model, batch.device):
            tolerance = TOLERANCE_HALF if dtype_of(model).itemsize == 2 else TOLERANCE
            call = partial(arguments_by, model, way=way)
            reasons[key] = documents_moved(model, batch, lambda part: call(batch=part), tolerance)
    return reasons[key]


def _across(chunk: int, seq_len: int) -> list[Lengths]:
    """Return documents' lengths in full rows, the last document across the end of a chunk."""
    row, at = divmod(chunk, seq_len)
    start = min(at - 1, at // 2 | 1)
    whole: list[Lengths] = [[seq_len]] * row
    return [*whole, [start, seq_len - start] if start else [seq_len]]


@contextmanager
def evaluated(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Run the body without gradients and dropout, then restore the model's mode and state."""
    with torch.no_grad(), restored_module(model, device):
        model.eval()
        yield


def _first_moves(call: Callable[[Any], Any], batches: Sequence[Any], context: float) -> bool:
    """Return True if the first document has other outputs in the last of three batches.

    Models that compute tokens of several documents together round outputs differently whenever
    other documents change; the difference between the first two batches measures that rounding.
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
    """Return True if the last document of every row has the outputs that it has alone."""
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
    """Return the outputs, (n, ...), of a document (n,) in a batch by itself."""
    return of_slots(_without_cache(model, ids), len(ids))


def _in_other_padding(model: nn.Module, ids: Tensor, seq_len: int) -> Tensor:
    """Return the outputs, (n, ...), of a document (n,) at the beginning of a full row.

    The row keeps its length, because rotary frequencies may depend on it.
    """
    row = torch.cat([ids, ids.flip(0)])[:seq_len]
    return of_slots(_without_cache(model, row), len(row))[: len(ids)]


def _without_cache(model: nn.Module, ids: Tensor) -> Any:
    # Some families attend otherwise with a cache, such as Doge, which chooses keys by it.
    cache = {"use_cache": False} if takes(model, "use_cache") else {}
    return model(input_ids=ids[None], **cache)
