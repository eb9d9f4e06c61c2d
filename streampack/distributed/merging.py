"""Merge the states that the ranks of a run saved into one, for any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streampack.changes.fields import changed_fields
from streampack.errors import StateError
from streampack.run.state import LaneState, check_state, checksum, named


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states that the ranks of a run saved after the same step into one.

    Args:
        states: states of all ranks, in any order.

    Returns:
        A state for any number of data-parallel ranks.

    Raises:
        StateError: the states are of different runs or steps, or lack or repeat a lane.
    """
    if isinstance(states, Mapping):
        raise StateError(
            "states must be a list of states, got one state.",
            "Pass a list of them, merge_states([state]); or load the state of one rank as it is.",
        )
    if not states:
        raise StateError("There are no states to merge.", "Pass the states that the ranks saved.")
    lanes: dict[int, LaneState] = {}
    first = states[0]
    seen: set[str] = set()
    for number, state in enumerate(states):
        check_state(state)
        if state["checksum"] in seen:  # from a rank that runs the same lanes
            continue
        seen.add(state["checksum"])
        if state["fingerprint"] != first["fingerprint"]:
            changed_fields(first["fingerprint"], state["fingerprint"])
        for name in dict.fromkeys((*first, *state)):
            if name in ("fingerprint", "lanes", "checksum", "counted"):
                continue
            here, theirs = first.get(name), state.get(name)
            if here != theirs:
                raise StateError(
                    f"`{name}` is {here} in the first state and {theirs} in number {number + 1}.",
                    "Merge the states that all ranks saved in one checkpoint.",
                )
        twice = [int(lane) for lane in state["lanes"] if int(lane) in lanes]
        if twice:
            raise StateError(
                f"Lanes {named(twice)} are in state number {number + 1} and in one before it.",
                "Pass one state of every data-parallel rank.",
            )
        lanes |= {int(lane): state["lanes"][lane] for lane in state["lanes"]}
    missing = sorted(set(range(first["fingerprint"]["lanes"])) - set(lanes))
    if missing:
        raise StateError(
            f"Lanes {named(missing)} are missing from all {len(states)} states.",
            "Pass the states of all ranks.",
        )
    merged = {str(lane): lanes[lane] for lane in sorted(lanes)}
    counted = [state["counted"] for state in states if "counted" in state]
    state = {**first, "lanes": merged}
    if counted:
        from streampack.accounts.totals import merged as merged_ledgers

        state["counted"] = merged_ledgers(counted)
    return {**state, "checksum": checksum(state)}
