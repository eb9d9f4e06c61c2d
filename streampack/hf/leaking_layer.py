"""Find the first module in which documents of a packed batch are mixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from streampack.hf.slot_outputs import flat_view, parts_of


def first_to_move(
    module: nn.Module,
    outputs: Callable[[Tensor], Tensor],
    mine: Tensor,
    others: Tensor,
    tolerance: float,
) -> str | None:
    """Return the name of the first module that changes outputs of other documents.

    Modules may call functions between their children, so inputs count too: if the input of a
    module moves and nothing before it did, its parent is the cause.
    """
    nothing = torch.zeros_like(mine)
    base = list(_traced(module, outputs, nothing))
    for before, after in zip(base, _traced(module, outputs, mine), strict=False):
        if before[0] != after[0]:  # the control flow depends on tokens
            break
        moved = (before[1] - after[1]).abs()
        if moved[others].max() > tolerance * moved[mine].max():
            return before[0]
    return None


def _traced(
    module: nn.Module, outputs: Callable[[Tensor], Tensor], where: Tensor
) -> list[tuple[str, Tensor]]:
    """Record the inputs and outputs of all modules in order, as a number for each slot."""
    seen: list[tuple[str, Tensor]] = []

    def note(name: str, found: Any) -> None:
        for value in found if isinstance(found, (tuple, list)) else (found,):
            flat = flat_view(value, len(where))
            if flat is not None:
                mixed = torch.arange(flat.shape[1], device=flat.device, dtype=torch.float64).cos()
                parts = [part.double() @ mixed for part in parts_of(flat)]
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
