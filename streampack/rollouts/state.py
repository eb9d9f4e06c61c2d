"""The state of rollouts: the position of the prompts and the ids in flight, without tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampack.arguments import type_in_words
from streampack.errors import StateError
from streampack.run.state import checksum

VERSION = 1
_FIELDS = {
    *("rollouts", "run", "incarnation", "steps", "published", "next"),
    *("in_flight", "prompts", "counts", "checksum"),
}


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with its version and checksum."""
    state = {"rollouts": VERSION, **state}
    return {**state, "checksum": checksum(state)}


def check_state(state: Mapping[str, Any]) -> None:
    """Raise `StateError` unless this version saved the state and it is unchanged since."""
    if not isinstance(state, Mapping) or _FIELDS - {*state}:
        raise StateError(
            f"The state must be one of rollouts, got {type_in_words(state)}.",
            "Pass the return value of `state_dict()` on rank 0.",
        )
    if state["rollouts"] != VERSION:
        raise StateError(
            f"The state has version {state['rollouts']}, this streampack reads version {VERSION}.",
            "Resume with the version of streampack that saved the state, or start a new run.",
        )
    if checksum(state) != state["checksum"]:
        raise StateError(
            "The state does not match its checksum.",
            "Pass the return value of `state_dict()`, unchanged.",
        )
