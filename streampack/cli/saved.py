"""Saved states: one file, or one of every rank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streampack.errors import ConfigError, StateError
from streampack.run.state import check_state, merge_states


def one_state(paths: Sequence[Path]) -> dict[str, Any]:
    """The state in these files together.

    Raises:
        ConfigError: a file cannot be read.
        StateError: a file holds no state, or they do not make one.
    """
    states = []
    for path in paths:
        state = _read(path)
        try:
            check_state(state)
        except StateError as error:
            raise StateError(f"{path}: {error.fact}", error.consequence, error.remedy) from error
        states.append(state)
    if len(states) == 1:
        return states[0]
    try:
        return merge_states(states)
    except StateError as error:
        files = ", ".join(f"{number + 1} is {path}" for number, path in enumerate(paths))
        fact = f"The states do not make one ({files}): {error.fact}"
        raise StateError(fact, error.consequence, error.remedy) from error


def summary_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Where a run is, and what it is made of, by name; JSON-able."""
    fingerprint = state["fingerprint"]
    lanes, following = fingerprint["lanes"], state["next_batch"]
    source = fingerprint["source"]
    members = source["sources"].values() if "sources" in source else [source]
    held = state["lanes"].values()
    return {
        "next batch": following,
        "its lane": following % lanes,
        "lanes": f"{len(held)} of {lanes}, {sum(own is None for own in held)} not begun",
        "sources": ", ".join(str(member["kind"]) for member in members),
        "packer": fingerprint["packer"]["kind"],
        "batch tokens": fingerprint["batch_tokens"],
        "window rows": fingerprint["window"]["rows"],
        "seed": fingerprint["seed"],
        "shuffle": fingerprint["shuffle"],
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}.",
            "There is no state to look at.",
            "Name files that hold what `state_dict()` returned, as JSON.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{path} is not JSON.",
            "It cannot be a state.",
            "Write it with json.dump(loader.state_dict(), file).",
        ) from error
    if isinstance(state, dict) and "lanes" not in state:  # {"data": loader.state_dict(), ...}
        inside = [held for held in state.values() if isinstance(held, dict) and "lanes" in held]
        return inside[0] if len(inside) == 1 else state
    return state
