"""The state of a run: what the loop has consumed, as coordinates that any process can go on from.

``{"version": 1, "fingerprint": {...}, "next_batch": g, "lanes": {"0": {...}, ...}}``: plain JSON.
A lane that has given nothing yet has the state None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streampack.errors import StateError
from streampack.lane_state import check_lane_state
from streampack.topology import Topology

__all__ = ["VERSION", "RunState"]

VERSION = 1

LaneState = dict[str, Any] | None


class RunState:
    """What one rank has consumed.

    Args:
        fingerprint: of the run; see `PackedDataset.fingerprint`.
        topology: whose lanes these are.
        next_batch: global number of the first batch not consumed by all ranks in step.
        lanes: state of each lane this rank owns.
    """

    def __init__(
        self,
        fingerprint: dict[str, Any],
        topology: Topology,
        next_batch: int,
        lanes: Mapping[int, LaneState],
    ) -> None:
        self.fingerprint = fingerprint
        self.topology = topology
        self.next_batch = next_batch
        self._lanes: dict[int, LaneState | Callable[[], LaneState]] = dict(lanes)

    @classmethod
    def begin(cls, fingerprint: dict[str, Any], topology: Topology) -> RunState:
        """The state before the first batch."""
        lanes = topology.lanes(0, fingerprint["lanes"])
        return cls(fingerprint, topology, 0, dict.fromkeys(lanes))

    @classmethod
    def load(
        cls, state: Mapping[str, Any], fingerprint: dict[str, Any], topology: Topology
    ) -> RunState:
        """A saved state, if it belongs to this run.

        Raises:
            StateError: it is of a newer version, malformed, of another run (naming the field and
                both values), or does not hold the lanes this rank owns.
        """
        check_structure(state)
        check_fingerprint(state["fingerprint"], fingerprint)
        start = state["next_batch"]
        owned = topology.lanes(start, fingerprint["lanes"])
        missing = [lane for lane in owned if str(lane) not in state["lanes"]]
        if missing:
            raise StateError(
                f"The state holds lanes {', '.join(sorted(state['lanes'], key=int))}; rank "
                f"{topology.rank} of {topology.world_size} also needs "
                f"{', '.join(map(str, missing))}.",
                "It is another rank's, or was saved with another number of ranks.",
                "Load the state that this rank saved.",
            )
        lanes = {lane: state["lanes"][str(lane)] for lane in owned}
        for lane, lane_state in lanes.items():
            if lane_state is not None:
                check_lane_state(lane, lane_state)
        return cls(fingerprint, topology, start, lanes)

    def commit(self, lane: int, step: int, state: LaneState | Callable[[], LaneState]) -> None:
        """Take note that the loop has consumed batch number `step` of `lane`."""
        batch = step * self.fingerprint["lanes"] + lane
        self.next_batch = batch - self.topology.rank + self.topology.world_size
        self._lanes[lane] = state

    def end(self, lane: int, state: LaneState) -> None:
        """Take note that `lane` has nothing more."""
        self._lanes[lane] = state

    def lane(self, lane: int) -> LaneState:
        """The state of one lane."""
        state = self._lanes[lane]
        if callable(state):
            state = self._lanes[lane] = state()
        return state

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; shares nothing with what later batches change."""
        return {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "next_batch": self.next_batch,
            "lanes": {str(lane): self.lane(lane) for lane in sorted(self._lanes)},
        }


def check_structure(state: Mapping[str, Any]) -> None:
    """Raise `StateError` unless this is a state this version can read."""
    if not isinstance(state, Mapping):
        raise _damaged(f"The state is a {type(state).__name__}.")
    missing = {"version", "fingerprint", "next_batch", "lanes"} - set(state)
    if missing:
        raise StateError(
            f"The state lacks {', '.join(sorted(missing))}.",
            "It is not a streampack state, or only a part of one.",
            "Pass what `state_dict()` returned.",
        )
    if state["version"] != VERSION:
        raise StateError(
            f"The state has version {state['version']}, this streampack reads version {VERSION}.",
            "Its meaning may have changed.",
            "Resume with the streampack that saved it, or a newer one.",
        )
    fingerprint, lanes = state["fingerprint"], state["lanes"]
    if not isinstance(fingerprint, Mapping) or not _is_count(fingerprint.get("lanes"), 1):
        raise _damaged("The state's fingerprint names no number of lanes.")
    if not isinstance(fingerprint.get("packer"), Mapping):
        raise _damaged("The state's fingerprint names no packer.")
    if not _is_count(state["next_batch"], 0):
        raise _damaged(f"The state's next_batch is {state['next_batch']!r}.")
    if not isinstance(lanes, Mapping) or not all(
        isinstance(lane, str) and lane.isdecimal() for lane in lanes
    ):
        raise _damaged("The state's lanes are not a mapping from their numbers, as text.")


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _damaged(fact: str) -> StateError:
    return StateError(
        fact,
        "It is not what streampack saved.",
        "Pass what `state_dict()` returned, unchanged.",
    )


def check_fingerprint(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise `StateError` naming the first field that differs, with both values."""
    before, now = dict(_flat(saved)), dict(_flat(current))
    # The kind of a thing first: another packer also has other parameters.
    names = sorted(before.keys() | now.keys(), key=lambda name: (not name.endswith("kind"), name))
    for name in names:
        if before.get(name) != now.get(name):
            raise StateError(
                f"`{name}` was {before.get(name)!r} when the state was saved and is "
                f"{now.get(name)!r} now.",
                "The batches behind the state would not be the ones that were to follow.",
                "Restore the old setting, or start a new run.",
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            pairs.append((prefix + name, list(value) if isinstance(value, tuple) else value))
    return pairs
