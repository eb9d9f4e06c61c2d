"""Run a model on a batch, and compare its outputs with those for changed or lone documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from streampack.checking.entries import TOKENS
from streampack.checking.faults import FaultLog
from streampack.checking.reading import View
from streampack.checking.truth import Truth
from streampack.errors import ConfigError
from streampack.hf.isolation import restored_module
from streampack.hf.slot_outputs import largest_movement, of_slots

#: Largest movement that counts as rounding, as a share of a token's effect on later tokens: for
#: outputs in single or double precision, and in half precision.
MIXED, MIXED_HALF = 1e-3, 1e-1
#: The same for outputs of a document alone, which kernels compute in other shapes.
ALONE, ALONE_HALF = 0.05, 0.5
#: Pieces of documents that are changed and run alone.
PIECES = 4
_LOSS = ("labels", "num_items_in_batch", "loss_mask", "shift_labels")


def has_routers(model: Any) -> bool:
    """Return True for models of transformers with routers of experts."""
    config = getattr(model, "config", None)
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    return any((getattr(config, name, None) or 0) > 1 for name in names)


def check_model(
    model: Any,
    batch: Any,
    view: View,
    truth: Truth,
    call: Callable[[Any], Any] | None,
    log: FaultLog,
) -> bool:
    """Add how a model mixes the documents of a batch.

    Args:
        model: a module, called as ``model(**batch)`` without labels.
        batch: the batch, a dictionary or pair with tensors of ids.
        view: the batch in one form.
        truth: documents of its slots.
        call: function from a batch to outputs, instead of ``model(**batch)``.
        log: log of the faults.

    Returns:
        False if the batch has fewer than two pieces of documents, or no tensor of ids to change.
    """
    pieces = _pieces(truth)
    batch = batch.hf() if hasattr(batch, "make_fields") else batch
    entries = batch if isinstance(batch, Mapping) else None
    name = next((name for name in TOKENS if entries is not None and name in entries), None)
    if len(pieces) < 2 or entries is None or name is None:
        return False
    ids: Tensor = entries[name]
    _require_vocabulary(model, int(view.tokens.max()))
    flat = view.tokens.reshape(-1)
    run = call or (lambda changed: model(**changed))
    kept = {key: value for key, value in entries.items() if key not in _LOSS}
    module = model if isinstance(model, nn.Module) else None

    def outputs(tokens: np.ndarray[Any, Any]) -> Tensor:
        changed = torch.as_tensor(tokens).to(ids).view(ids.shape)
        return of_slots(run({**kept, name: changed}), len(flat))

    with torch.no_grad(), restored_module(module, ids.device):
        training = module is not None and module.training
        if module is not None:
            module.eval()
        try:
            base = outputs(flat)
            half = base.element_size() == 2
            most_mixed, most_alone = (MIXED_HALF, ALONE_HALF) if half else (MIXED, ALONE)
            scale = _context(outputs, base, flat, max(pieces, key=len))
            for piece in pieces[:PIECES]:
                others = np.concatenate([other for other in pieces if other is not piece])
                moved = largest_movement(base, outputs(_changed(flat, piece)))[others].cpu()
                if float(moved.max()) > most_mixed * scale:
                    slot = int(others[int(moved.argmax())])
                    _add(log, "model-mixes-documents", view, slot, float(moved.max()) / scale)
                    return True
            if module is None or "input_ids" not in kept:
                return True
            for piece in pieces[:PIECES]:
                document = torch.as_tensor(flat[piece]).to(ids)[None]
                alone = of_slots(module(input_ids=document), len(piece))
                moved = largest_movement(base[torch.as_tensor(piece)], alone).cpu()
                if float(moved.max()) > most_alone * scale:
                    slot = int(piece[int(moved.argmax())])
                    _add(log, "model-differs-from-alone", view, slot, float(moved.max()) / scale)
                    return True
        finally:
            if module is not None:
                module.train(training)
    return True


def _require_vocabulary(model: Any, largest: int) -> None:
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    if size is not None and size <= largest:
        raise ConfigError(
            f"model must have a vocabulary of at least {largest + 1:,} ids, got {size:,}.",
            "Make the model with vocab_size=documents.vocab_size and random weights, or pass "
            "fewer or shorter marked documents.",
            setting="model",
        )


def _add(log: FaultLog, kind: str, view: View, slot: int, moved: float) -> None:
    row, position = divmod(slot, view.tokens.shape[1])
    log.add(kind, row=row, slot=position, detail=f"outputs move by {moved:.2g} of a token's effect")


def _pieces(truth: Truth) -> list[np.ndarray[Any, Any]]:
    """Return the slots in the flattened rows of each piece of a document, of two tokens or more."""
    starts = np.ones(truth.document.shape, dtype=bool)
    starts[:, 1:] = ~truth.continues[:, :-1]
    number = starts.reshape(-1).cumsum()
    real = np.flatnonzero(truth.document.reshape(-1) >= 0)
    split = np.flatnonzero(np.diff(number[real])) + 1
    return [piece for piece in np.split(real, split) if len(piece) > 1]


def _changed(flat: np.ndarray[Any, Any], piece: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the ids with one piece in reverse order."""
    changed = flat.copy()
    changed[piece] = flat[piece][::-1]
    return changed


def _context(
    outputs: Callable[[np.ndarray[Any, Any]], Tensor],
    base: Tensor,
    flat: np.ndarray[Any, Any],
    piece: np.ndarray[Any, Any],
) -> float:
    """Return the largest effect of a piece's first token on its later outputs."""
    changed = flat.copy()
    changed[piece[0]] = flat[piece[-1]]
    moved = largest_movement(base, outputs(changed))[torch.as_tensor(piece[1:])]
    return max(float(moved.max()), 1e-12)
