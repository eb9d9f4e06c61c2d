"""Test whether a model keeps the documents of a packed batch apart.

The test assumes nothing about the mechanism: one document is changed, and the outputs of all others
must not change. If they do, a second pass over every module finds the first one that leaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from streampack.errors import ConfigError
from streampack.forms.attention import segment_ids
from streampack.forms.image_columns import images_of
from streampack.hf.attention import adds_router_loss, arguments_by
from streampack.hf.leaking_layer import first_to_move
from streampack.hf.router_isolation import padding_in_router_loss, router_loss
from streampack.hf.slot_outputs import largest_movement, of_slots

#: Largest movement that counts as rounding, as a share of a token's effect on later tokens of its
#: document: for outputs in single or double precision, and in half precision.
_TOLERANCE, _TOLERANCE_HALF = 1e-3, 1e-1


@dataclass(frozen=True)
class Leak:
    """A document that changes the outputs of another one.

    Attributes:
        changed: the document that was changed, as in `document_ids`.
        moved: the document with changed outputs.
        movement: size of the change; 1 is the effect of a token on later tokens of its document.
    """

    changed: int
    moved: int
    movement: float


@dataclass(frozen=True, repr=False)
class Isolation:
    """Result of `check_isolation`; true if documents are kept apart.

    Attributes:
        documents: number of documents that were changed, one at a time.
        leaks: pairs of documents in the order of the batch; empty if documents are kept apart.
        context: largest effect of a document's first token on the outputs after it.
        layer: name of the first module that leaks, as in ``model.named_modules()``; "" is the model
            itself. None without a leak, or if `model` was a function.
        padding_in_router_loss: effect of padding on the auxiliary loss of routers; 1 is the effect
            of all tokens. 0 without such a loss, and for rounding.
    """

    documents: int
    leaks: tuple[Leak, ...]
    context: float
    layer: str | None = None
    padding_in_router_loss: float = 0.0

    @property
    def isolated(self) -> bool:
        """True if no document changes the outputs of another one, nor padding the loss."""
        return not self.leaks and not self.padding_in_router_loss

    def __bool__(self) -> bool:
        return self.isolated

    def __repr__(self) -> str:
        if self.isolated:
            return f"Isolation(isolated=True, documents={self.documents})"
        shown = ", ".join(f"{leak.changed} moves {leak.moved}" for leak in self.leaks[:3])
        more = f" and {len(self.leaks) - 3} more" if len(self.leaks) > 3 else ""
        parts = ["isolated=False", f"documents={self.documents}", f"leaks=({shown}{more})"]
        if self.layer is not None:
            parts.append(f"layer={self.layer!r}")
        if self.padding_in_router_loss:
            parts.append(f"padding_in_router_loss={self.padding_in_router_loss:.3g}")
        return f"Isolation({', '.join(parts)})"


def check_isolation(
    model: Any,
    batch: Any,
    *,
    call: Callable[[Any], Any] | None = None,
    tolerance: float | None = None,
) -> Isolation:
    """Test that no document of a packed batch changes a model's outputs for another one.

    The documents are changed one at a time. That takes a forward pass per document and two more (a
    few more if there is a leak), without gradients, so use a small batch. The model stays in its
    mode, because training is the case that matters; its buffers and torch's random state are
    restored. Every pass starts from the same random state, so dropout is the same in all.

    The unit is the attention segment: documents that share one, as with ``attention="row"``, count
    as one document under the id of the first. In trees, the slots that a sequence does not share
    with an earlier one are changed, and all slots that do not see them must stay. In documents with
    images the pixels are changed.

    If the outputs have an `aux_loss`, as those of mixtures of experts of transformers with
    ``output_router_logits=True``, padding is changed too, and this loss must stay.

    Args:
        model: a module, or a function of a batch. A model of transformers, or another module with
            input embeddings, is called as ``model(**batch.hf())`` without labels; others as
            ``model(batch)``.
        batch: a `PackedBatch` on the model's device, with at least two documents, one of them of at
            least two tokens.
        call: function from a batch to outputs, for a model with another signature, for example
            ``lambda batch: model(batch.input_ids, batch.cu_seqlens)``. The outputs are a tensor of
            shape (rows, seq_len, ...), (1, T, ...) or (T, ...), or an object with such a tensor as
            `logits` or as its first element. The outputs for ``batch.hf(model=model)`` also work.
        tolerance: largest movement that counts as rounding, as a share of the effect of a
            document's first token on later ones. None means 0.001, or 0.1 for outputs in half
            precision. Most models that keep documents apart move by exactly 0; mixtures of experts
            compute tokens of several documents together and therefore round differently.

    Raises:
        ConfigError: the test is impossible: too few documents, outputs that are not finite or do
            not have one entry per slot, no output that depends on an earlier token, or different
            outputs for the same batch.
    """
    call = _caller(model, batch) if call is None else call
    segment, below = _segments(batch)
    ids = batch.input_ids.view(-1)
    changed_ids = _exchanged(batch, ids)
    numbers = sorted(set(segment.tolist()) - {-1})
    longest = max(numbers, key=lambda number: int((segment == number).sum()))
    first = int((segment == longest).nonzero()[0])
    module = model if isinstance(model, nn.Module) else None

    def called(where: Tensor) -> Any:
        torch.manual_seed(0)
        other = torch.where(where, changed_ids, ids).view(batch.input_ids.shape)
        changed = batch._with_input_ids(other)
        if images_of(batch) is not None:
            from streampack.images.model_arguments import with_changed_images

            changed = with_changed_images(changed, where)
        return call(changed)

    def outputs(where: Tensor) -> Tensor:
        return of_slots(called(where), len(ids), batch)

    with torch.no_grad(), restored_module(module, ids.device):
        nothing = torch.zeros_like(segment, dtype=torch.bool)
        first_outputs = called(nothing)
        base = of_slots(first_outputs, len(ids), batch)
        if tolerance is None:
            tolerance = _TOLERANCE_HALF if base.element_size() == 2 else _TOLERANCE
        at_first = torch.arange(len(ids), device=ids.device) == first
        context = largest_movement(base, outputs(at_first))
        after = (segment == longest) & ~at_first
        scale = float(context[after].max()) if after.any() else 0.0
        _check_context(scale)
        leaks = []
        for number in numbers:
            moved = largest_movement(base, outputs(segment == number)) / scale
            moved[below(segment == number)] = 0
            leaks += [
                Leak(number, other, movement)
                for other in numbers
                if other != number
                and not (movement := float(moved[segment == other].max())) <= tolerance
            ]
        if leaks:
            _check_repeats(float(largest_movement(base, outputs(nothing)).max()) / scale, tolerance)
        layer = None
        if leaks and module is not None:
            mine = segment == leaks[0].changed
            others = (segment >= 0) & ~mine & ~below(mine)
            layer = first_to_move(module, outputs, mine, others, tolerance)
        routers = 0.0
        if router_loss(first_outputs) is not None:
            routers = padding_in_router_loss(called, segment < 0, tolerance)
    return Isolation(len(numbers), tuple(leaks), scale, layer, routers)


def _caller(model: Any, batch: Any) -> Callable[[Any], Any]:
    # True for transformers models and their wrappers.
    if not hasattr(model, "get_input_embeddings"):
        return model  # type: ignore[no-any-return]

    if _is_tree(batch):
        return lambda batch: model(**without_loss(arguments_by(model, batch, "mask"), model))
    return lambda batch: model(**without_loss(batch.hf()))


def _is_tree(batch: Any) -> bool:
    return hasattr(batch, "tout")


def without_loss(arguments: dict[str, Any], model: Any = None) -> dict[str, Any]:
    """Remove the arguments with which a model of transformers computes losses."""
    loss = ("labels", "num_items_in_batch")
    remaining = {name: value for name, value in arguments.items() if name not in loss}
    if model is not None and adds_router_loss(model):
        remaining["output_router_logits"] = False
    return remaining


def _segments(batch: Any) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return each slot's segment, (T,), and a function from changed slots to affected ones.

    A segment is named by the index of its first document; -1 is padding. The function maps a (T,)
    bool mask of changed slots to the mask of slots with outputs that may change.

    Raises:
        ConfigError: the batch has fewer than two segments with tokens.
    """
    document = batch.document_ids.view(-1).long()

    def below(where: Tensor) -> Tensor:
        if not _is_tree(batch):
            return where
        seen = batch.mask()[:, 0] & where.view(batch.rows, 1, batch.seq_len)
        return torch.as_tensor(seen.any(dim=2).view(-1))

    if _is_tree(batch):  # a slot belongs to the first sequence that has it
        segment, known = batch.slot, batch.sequence_ids
        first = torch.full_like(document, len(document))
        numbers = first.scatter_reduce(0, segment, known, "amin")
    else:
        segment = segment_ids(batch).long()
        first = torch.full((int(segment[-1]) + 1,), len(document), device=document.device)
        known = torch.where(document < 0, len(document), document)
        numbers = first.scatter_reduce(0, segment, known, "amin")[segment]
    numbers = torch.where(document < 0, -1, numbers)
    if len(set(numbers.tolist()) - {-1}) < 2:
        raise ConfigError(
            "batch must have at least two attention segments with tokens.",
            'Pass a batch with several documents, packed with attention="document".',
            setting="batch",
        )
    return numbers, below


def _exchanged(batch: Any, ids: Tensor) -> Tensor:
    """Return the batch's ids, (T,), each replaced by the next id that occurs in the batch.

    Image tokens are unchanged, because the pixels of images are changed instead.
    """
    if (images := images_of(batch)) is not None and len(images.spans):
        from streampack.images.model_arguments import in_images

        text = ~in_images(batch)
        out = ids.clone()
        out[text] = _next_ones(ids[text])
        return out
    return _next_ones(ids)


def _next_ones(ids: Tensor) -> Tensor:
    used, place = torch.unique(ids, return_inverse=True)
    if len(used) < 2:
        raise ConfigError(
            "batch must have at least two different token ids, but all are the same.",
            "Pass a batch of real documents.",
            setting="batch",
        )
    changed: Tensor = used[(place + 1) % len(used)]
    return changed


def _check_context(scale: float) -> None:
    if scale == 0:
        raise ConfigError(
            "Changing the first token of the longest document moves no output after it.",
            "Check a model with random or trained weights, on a batch with a document of several "
            "tokens.",
            setting="model",
        )


def _check_repeats(movement: float, tolerance: float) -> None:
    if movement > tolerance:
        raise ConfigError(
            "The model must return the same outputs for the same batch, but two calls differ.",
            "Remove state between calls, and random numbers other than torch's.",
            setting="model",
        )


@contextmanager
def restored_module(module: nn.Module | None, device: torch.device) -> Iterator[None]:
    """Restore torch's random state and the module's buffers and numeric attributes on exit."""
    parts = [] if module is None else list(module.modules())
    buffers = [dict(part._buffers) for part in parts]
    values = [
        {name: value.clone() for name, value in held.items() if value is not None}
        for held in buffers
    ]
    kept = [
        {name: value for name, value in vars(part).items() if isinstance(value, (int, float))}
        for part in parts
    ]
    on_host = device.type == "cpu"
    with torch.random.fork_rng(
        devices=[] if on_host else [device], device_type="cuda" if on_host else device.type
    ):
        try:
            yield
        finally:
            for part, held, before, numbers in zip(parts, buffers, values, kept, strict=True):
                for name, value in before.items():
                    held[name].copy_(value)  # type: ignore[union-attr]
                part._buffers.clear()
                part._buffers.update(held)
                vars(part).update(numbers)
