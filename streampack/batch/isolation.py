"""check_isolation: does a model keep the documents of a packed batch apart?

Nothing is assumed about how it does: one document is changed, and the outputs at all others must
stay. Where they do not, a second look at every module says which one is the first to move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from streampack.batch.attention import segment_ids
from streampack.batch.hf_ways import adds_router_loss, arguments_by
from streampack.errors import ConfigError

#: What is taken for rounding, as a share of what a token does to those after it in its document:
#: of outputs in single or double precision, and in half precision.
_TOLERANCE, _TOLERANCE_HALF = 1e-3, 1e-1


@dataclass(frozen=True)
class Leak:
    """One document that moves another one.

    Attributes:
        changed: the document that was changed, as in `document_ids`.
        moved: the one whose outputs moved.
        movement: by how much, where 1 is as much as a token moves those after it in its document.
    """

    changed: int
    moved: int
    movement: float


@dataclass(frozen=True, repr=False)
class Isolation:
    """What `check_isolation` found. It is true if documents are kept apart.

    Attributes:
        documents: how many were changed, one after the other.
        leaks: which document moved which, in the order of the batch; empty if none did.
        context: what the first token of a document moves the outputs after it by, at most.
        layer: name of the first module whose output moves for another document, as in
            ``model.named_modules()``; "" is the model itself. None if nothing leaks, or what was
            checked is no module.
    """

    documents: int
    leaks: tuple[Leak, ...]
    context: float
    layer: str | None = None

    @property
    def isolated(self) -> bool:
        """No document moves another one."""
        return not self.leaks

    def __bool__(self) -> bool:
        return self.isolated

    def __repr__(self) -> str:
        if self.isolated:
            return f"Isolation(isolated=True, documents={self.documents})"
        shown = ", ".join(f"{leak.changed} moves {leak.moved}" for leak in self.leaks[:3])
        more = f" and {len(self.leaks) - 3} more" if len(self.leaks) > 3 else ""
        layer = "" if self.layer is None else f", layer={self.layer!r}"
        return (
            f"Isolation(isolated=False, documents={self.documents}, leaks=({shown}{more}){layer})"
        )


def check_isolation(
    model: Any,
    batch: Any,
    *,
    call: Callable[[Any], Any] | None = None,
    tolerance: float | None = None,
) -> Isolation:
    """Change one document of a packed batch after the other, and see whether others' outputs move.

    It takes a forward pass per document and two more (a few where something leaks), without
    gradients, so use a small batch. The model stays in its mode (what it does in training is what
    counts), and its buffers and the state of torch's random numbers are put back. Every pass begins
    with the same random numbers, so dropout is the same in all.

    Documents are apart where the batch says so, in attention segments: those that share one, as
    with ``attention="row"``, count as one, under the number of the first. In trees the slots of a
    sequence that none before it has are changed, and all that do not see these must stay. Of a
    document with images their pixels are changed.

    Args:
        model: a module, or a function of a batch. A model of transformers, or whatever else takes
            `input_ids`, is called as ``model(**batch.hf())`` without labels; others as
            ``model(batch)``.
        batch: a `PackedBatch` of at least two documents, one of which has at least two tokens, on
            the model's device.
        call: what gives outputs of a batch instead, for example
            ``lambda batch: model(batch.input_ids, batch.cu_seqlens)``. Outputs are a tensor of
            (rows, seq_len, ...), (1, T, ...) or (T, ...), or have it as their `logits` or as what
            they hold first.
        tolerance: largest movement that is taken for rounding, as a share of what the first token
            of a document does to those after it. None is 0.001, and 0.1 if the outputs are in half
            precision. Where documents are apart most models move by exactly 0; mixtures of
            experts compute other tokens together, so theirs are rounded differently.

    Raises:
        ConfigError: nothing can be said: too few documents, outputs that are not numbers or not
            those of every slot, no output depends on an earlier token of its document, or outputs
            are others for the same batch.
    """
    call = _caller(model, batch) if call is None else call
    segment, below = _segments(batch)
    ids = batch.input_ids.view(-1)
    changed_ids = _exchanged(batch, ids)
    numbers = sorted(set(segment.tolist()) - {-1})
    longest = max(numbers, key=lambda number: int((segment == number).sum()))
    first = int((segment == longest).nonzero()[0])
    module = model if isinstance(model, nn.Module) else None

    def outputs(where: Tensor) -> Tensor:
        torch.manual_seed(0)
        other = torch.where(where, changed_ids, ids).view(batch.input_ids.shape)
        changed = batch._with_input_ids(other)
        if has_images(batch):
            from streampack.batch.media_arguments import with_changed_images

            changed = with_changed_images(changed, where)
        return of_slots(call(changed), len(ids))

    with torch.no_grad(), put_back(module, ids.device):
        nothing = torch.zeros_like(segment, dtype=torch.bool)
        base = outputs(nothing)
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
            layer = _first_to_move(module, outputs, mine, others, tolerance)
    return Isolation(len(numbers), tuple(leaks), scale, layer)


def _caller(model: Any, batch: Any) -> Callable[[Any], Any]:
    if not hasattr(model, "get_input_embeddings"):  # of transformers, or around one of its models
        return model  # type: ignore[no-any-return]

    if _is_tree(batch):
        return lambda batch: model(**without_loss(arguments_by(model, batch, "mask"), model))
    return lambda batch: model(**without_loss(batch.hf(), model))


def _is_tree(batch: Any) -> bool:
    return hasattr(batch, "tout")


def without_loss(arguments: dict[str, Any], model: Any = None) -> dict[str, Any]:
    """Arguments of a model of transformers by which it gives no loss, nor one of its routers."""
    loss = ("labels", "num_items_in_batch")
    made = {name: value for name, value in arguments.items() if name not in loss}
    if model is not None and adds_router_loss(model):
        made["output_router_logits"] = False
    return made


def _segments(batch: Any) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """(T,) number of the first document of each slot's attention segment; -1 on padding.

    And a function that says of some slots (T,) which others may move with them (T,).
    """
    document = batch.document_ids.view(-1).long()

    def below(where: Tensor) -> Tensor:
        if not _is_tree(batch):
            return where
        seen = batch.mask()[:, 0] & where.view(batch.rows, 1, batch.seq_len)
        return torch.as_tensor(seen.any(dim=2).view(-1))

    if _is_tree(batch):  # the first sequence that has it
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
            "The batch has fewer than two attention segments with tokens.",
            'Pass a batch with several documents, packed with attention="document".',
            setting="batch",
        )
    return numbers, below


def has_images(batch: Any) -> bool:
    """True for a batch of a run with images."""
    return getattr(batch, "_places", None) is not None


def _exchanged(batch: Any, ids: Tensor) -> Tensor:
    """(T,) the ids of the batch, each exchanged for the next one that occurs in it.

    The places of images stay: their pixels are changed.
    """
    if has_images(batch) and len(batch._places.spans):
        from streampack.batch.media_arguments import in_images

        text = ~in_images(batch)
        out = ids.clone()
        out[text] = _next_ones(ids[text])
        return out
    return _next_ones(ids)


def _next_ones(ids: Tensor) -> Tensor:
    used, place = torch.unique(ids, return_inverse=True)
    if len(used) < 2:
        raise ConfigError(
            "All tokens of the batch are the same.",
            "Pass a batch of real documents.",
            setting="batch",
        )
    changed: Tensor = used[(place + 1) % len(used)]
    return changed


def of_slots(outputs: Any, slots: int) -> Tensor:
    """(T, n) what a model gives for each slot."""
    found = getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, dict):
        found = outputs.get("logits", next(iter(outputs.values()), None))
    if found is None:
        found = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
    flat = _flat(found, slots)
    if flat is None:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"The model gives {shape}, and the batch has {slots} slots.",
            "Pass call=, a function of the batch that returns floating-point outputs of every "
            "slot: (rows, seq_len, ...), (1, T, ...) or (T, ...).",
            setting="call",
        )
    return flat


def _flat(found: Any, slots: int) -> Tensor | None:
    """(T, n) view of a floating-point tensor whose first dimensions are those of the slots."""
    if not isinstance(found, Tensor) or not found.is_floating_point():
        return None
    for leading in (1, 2):
        if found.dim() >= leading and found.shape[:leading].numel() == slots and found.numel():
            return found.reshape(slots, -1)
    return None


def _parts(values: Tensor) -> list[Tensor]:
    """A few slots at a time, since logits of a large vocabulary had better not be copied whole."""
    return [values[first : first + 1024] for first in range(0, len(values), 1024)]


def largest_movement(base: Tensor, changed: Tensor) -> Tensor:
    """(T,) the largest difference in each slot."""
    pairs = zip(_parts(base), _parts(changed), strict=True)
    moved = torch.cat([(one.float() - other.float()).abs().amax(dim=1) for one, other in pairs])
    if not moved.isfinite().all():
        raise ConfigError(
            "The model gives outputs that are not finite numbers.",
            "Look for slots whose attention mask hides everything, or pass call= with finite "
            "outputs.",
            setting="model",
        )
    return moved


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
            "The model gives other outputs for the same batch when it is called again.",
            "Check it without state between calls, and with no random numbers but torch's.",
            setting="model",
        )


@contextmanager
def put_back(module: nn.Module | None, device: torch.device) -> Iterator[None]:
    """Torch's random numbers, the module's buffers, and numbers that its parts keep, as before."""
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


def _first_to_move(
    module: nn.Module,
    outputs: Callable[[Tensor], Tensor],
    mine: Tensor,
    others: Tensor,
    tolerance: float,
) -> str | None:
    """Name of the module in which outputs of other documents move first.

    Modules may call functions between one another, so inputs count too: where the input of a
    module moves and nothing before it did, its parent has moved it.
    """
    nothing = torch.zeros_like(mine)
    base = list(_traced(module, outputs, nothing))
    for before, after in zip(base, _traced(module, outputs, mine), strict=False):
        if before[0] != after[0]:  # it takes another way for other tokens
            break
        moved = (before[1] - after[1]).abs()
        if moved[others].max() > tolerance * moved[mine].max():
            return before[0]
    return None


def _traced(
    module: nn.Module, outputs: Callable[[Tensor], Tensor], where: Tensor
) -> list[tuple[str, Tensor]]:
    """Who gave what, in order: a module's name, and a number for each slot."""
    seen: list[tuple[str, Tensor]] = []

    def note(name: str, found: Any) -> None:
        for value in found if isinstance(found, (tuple, list)) else (found,):
            flat = _flat(value, len(where))
            if flat is not None:
                mixed = torch.arange(flat.shape[1], device=flat.device, dtype=torch.float64).cos()
                parts = [part.double() @ mixed for part in _parts(flat)]
                seen.append((name, torch.cat(parts)))

    def watch(name: str, watched: nn.Module) -> list[Any]:
        parent = name.rpartition(".")[0]
        while isinstance(module.get_submodule(parent), (nn.ModuleList, nn.ModuleDict)):
            parent = parent.rpartition(".")[0]

        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            note(parent, (*args, *kwargs.values()))

        def after(_: nn.Module, args: Any, output: Any) -> None:
            note(name, list(output.values()) if isinstance(output, dict) else output)

        return [
            watched.register_forward_pre_hook(before, with_kwargs=True),
            watched.register_forward_hook(after),
        ]

    hooks = [hook for name, each in module.named_modules() for hook in watch(name, each)]
    try:
        outputs(where)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
