"""Finding the state of a run inside a checkpoint, for errors of a wrong call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampack.run.state import FIELDS

ENTRY = "streampack"  # key of the entry that `DistributedState` makes


def state_inside(checkpoint: Any, name: str = "state", depth: int = 3) -> str | None:
    """Return the Python expression of a run's state inside a checkpoint; None without one."""
    if not isinstance(checkpoint, Mapping) or not depth:
        return None
    if isinstance(checkpoint.get(ENTRY), str):
        return f"{name} to DistributedState(loader).load_state_dict"
    if set(FIELDS) <= set(checkpoint):
        return name
    expressions = (
        state_inside(value, f"{name}[{key!r}]", depth - 1) for key, value in checkpoint.items()
    )
    return next((each for each in expressions if each is not None), None)
