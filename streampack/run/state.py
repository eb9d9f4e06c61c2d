"""The state of a run: the position of the loop, as coordinates that any process can resume from.

``{"version": 7, "fingerprint": {...}, "next_batch": g, "stepped_over": [[first, end], ...],
"lanes": {"0": {...}, ...}}``: plain JSON, and further keys of leaves, such as the changes of a
mixture's weights. A lane that has given nothing yet has the state None.
The state of a rank holds each lane with a latest turn that was this rank's: if the ranks divide the
lanes, all lanes that it runs. `merge_states` combines the states of all ranks into one, and any
number of ranks can resume from it.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from streampack.arguments import type_in_words
from streampack.deals.report_channel import ReportChannel
from streampack.errors import StateError
from streampack.job.topology import Topology

VERSION = 7

LaneState = dict[str, Any] | None

#: The state of a lane, or a function that makes it, since few states are needed.
Deferred = LaneState | Callable[[], LaneState]


def batches_known(state: LaneState) -> int:
    """Return the number of batches known in a lane when its state was taken, given or not."""
    if state is None:
        return 0
    return int(state["step"]) + int(state["emitted"]) + (state["final"] is False)


def batches_due(lane: int, next_batch: int, lanes: int) -> int:
    """Return this lane's turns before batch `next_batch`; it may have given fewer batches."""
    return -((lane - next_batch) // lanes) if next_batch > lane else 0


@dataclass(slots=True)
class RunState:
    """The state of one rank after the batches it has consumed.

    Args:
        fingerprint: identity of the run; see `PackedDataset.fingerprint`.
        topology: topology of the rank that runs the lanes.
        next_batch: global index of the first batch not consumed by all ranks in step.
        lanes: state of each lane this rank owns.
        stepped_over: index ranges [first, end) of batches that the loop stepped over.
        others: states of other lanes, from the state that this one was loaded from.
        beside: JSON-able values of leaves by key of the state; replaced, never changed.
        counted: the same of this rank's batches, which other ranks may have otherwise.
    """

    fingerprint: dict[str, Any]
    topology: Topology
    next_batch: int
    lanes: dict[int, Deferred]
    stepped_over: list[list[int]] = field(default_factory=list)
    others: dict[int, Deferred] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    counted: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_rank(
        cls, state: Mapping[str, Any], fingerprint: dict[str, Any], topology: Topology
    ) -> RunState:
        """Select the lanes of one rank from a checked state.

        Raises:
            StateError: the state lacks some of them.
        """
        start = state["next_batch"]
        owned = topology.lanes(start, fingerprint["lanes"])
        missing = [lane for lane in owned if str(lane) not in state["lanes"]]
        if missing:
            held = f"lanes {named(map(int, state['lanes']))}" if state["lanes"] else "no lane"
            raise StateError(
                f"The state holds {held}; rank {topology.rank} "
                f"of {topology.world_size} also needs {named(missing)}.",
                "Load the state that this rank saved, or the state of all ranks, which "
                "`merge_states` makes.",
            )
        lanes = {int(lane): state_of_lane for lane, state_of_lane in state["lanes"].items()}
        mine = {lane: lanes.pop(lane) for lane in owned}
        values = {name: value for name, value in state.items() if name not in FIELDS}
        counted = values.pop("counted", {})
        return cls(
            fingerprint, topology, start, mine, state["stepped_over"], lanes, values, counted
        )

    def copy(self) -> RunState:
        """Return an independent copy."""
        return replace(self, lanes=dict(self.lanes), stepped_over=copy.deepcopy(self.stepped_over))

    def commit(self, lane: int, step: int, state: Deferred) -> None:
        """Record that the loop has consumed batch number `step` of `lane`.

        Args:
            lane: index of the lane.
            step: index of the batch in the lane.
            state: state of the lane from here on; None leaves it unchanged.
        """
        self.next_batch = self.topology.step_after(step * self.fingerprint["lanes"] + lane)
        if state is not None:
            self.lanes[lane] = state

    def step_over(self, first: int) -> None:
        """Record that the batches from index `first` on were consumed without being used."""
        if first == self.next_batch:
            return
        if self.stepped_over and self.stepped_over[-1][1] == first:
            first = self.stepped_over.pop()[0]
        self.stepped_over.append([first, self.next_batch])

    def replan(self, change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> None:
        """Change the state of every lane that has begun."""
        for lane in self.lanes:
            state = self.lane(lane)
            if state is not None:
                self.lanes[lane] = change(lane, state)
        self.others = {
            lane: partial(change, lane, state) if isinstance(state, dict) else state
            for lane, state in self.others.items()
        }

    def states(self) -> dict[int, LaneState]:
        """Return the states of the lanes that this rank runs, in the order of the rotation."""
        lanes = self.topology.lanes(self.next_batch, self.fingerprint["lanes"])
        return {lane: self.lane(lane) for lane in lanes}

    def sharing(
        self, *, connected: bool, name: str | None = None, kept: bool = False
    ) -> ReportChannel:
        """Return the channel by which this rank's lanes receive other lanes' reports for deals.

        Args:
            connected: True if the ranks exchange reports.
            name, kept: name and lifetime of the file of several processes; see `ReportChannel`.
        """
        if connected:
            return ReportChannel(name, kept=kept)
        total = self.fingerprint["lanes"]
        unknown = set(range(total)).difference(self.lanes)
        others = {lane: self.others[lane] for lane in unknown if lane in self.others}
        known = {
            lane: lane_state() if callable(lane_state) else lane_state
            for lane, lane_state in others.items()
        }
        return ReportChannel(name, known, sorted(unknown.difference(known)), kept)

    def lane(self, lane: int) -> LaneState:
        """Return the state of one lane."""
        state = self.lanes[lane]
        if callable(state):
            state = self.lanes[lane] = state()
        return state

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able copy, unaffected by later batches."""
        state = {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "next_batch": self.next_batch,
            "stepped_over": [list(numbers) for numbers in self.stepped_over],
            **copy.deepcopy(dict(self.beside)),
            **({"counted": copy.deepcopy(self.counted)} if self.counted else {}),
        }
        owned = self.topology.owned_lanes(self.next_batch, self.fingerprint["lanes"])
        lanes = {str(lane): self.lane(lane) for lane in sorted(owned)}
        state["lanes"] = lanes
        return {**state, "checksum": checksum(state)}


FIELDS = ("version", "fingerprint", "next_batch", "stepped_over", "checksum", "lanes")


def check_state(state: Mapping[str, Any]) -> None:
    """Raise `StateError` unless this version saved the state and it is unchanged since."""
    if not isinstance(state, Mapping):
        raise StateError(
            f"The state must be a dict, got {type_in_words(state)}.",
            "Pass the return value of `state_dict()`.",
        )
    version = state.get("version")
    if isinstance(version, int) and version != VERSION:
        raise StateError(
            f"The state has version {version}, this streampack reads version {VERSION}.",
            "Resume with the version of streampack that saved the state, or start a new run.",
        )
    missing = set(FIELDS) - set(state)
    if missing:
        from streampack.changes.inside import state_inside

        if (inside := state_inside(state)) is not None:
            raise StateError("The mapping contains a state but is not one.", f"Pass {inside}.")
        raise StateError(
            f"The state lacks {', '.join(sorted(missing))}.",
            "Pass the return value of `state_dict()`.",
        )
    if checksum(state) != state["checksum"]:
        raise StateError(
            "The state does not match its checksum.",
            "Pass the return value of `state_dict()`, unchanged.",
        )


def named(lanes: Iterable[int]) -> str:
    """Format up to 12 lane indices as text."""
    numbers = sorted(lanes)
    shown = ", ".join(map(str, numbers[:12]))
    return shown if len(numbers) <= 12 else f"{shown}, ... ({len(numbers)} in all)"


def checksum(state: Mapping[str, Any]) -> str:
    """Return 64 bits, in hexadecimal, over all of a JSON-able state except its checksum."""
    fields = {name: state[name] for name in state if name != "checksum"}
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        return f"none, for {error}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
