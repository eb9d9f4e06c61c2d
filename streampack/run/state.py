"""The state of a run: the position of the loop, as coordinates that any process can resume from.

``{"version": 7, "fingerprint": {...}, "next_batch": g, "stepped_over": [[first, end], ...],
"lanes": {"0": {...}, ...}}``: plain JSON, and further keys of leaves, such as the changes of a
mixture's weights. A lane that has given nothing yet has the state None.
The state of a rank holds each lane with a latest turn that was this rank's: if the ranks divide the
lanes, all lanes that it runs. `merge_states` combines the states of all ranks into one, and any
number of ranks can resume from it.

`DistributedState` stores a run's state in a torch.distributed.checkpoint (DCP). `state_dict`:
  1. The data-parallel ranks show each other their states (`all_gather_object`).
  2. Every rank merges them; processes that share a data-parallel rank count once.
  3. DCP gets one entry, the same on every rank, which it stores once.
So the keys do not depend on the number of ranks or lanes, and a load requests existing keys.

Cost: the states of all lanes, some kilobytes each, pass through every rank: 4 MB for 1,000 lanes.
With tens of thousands, write one file per rank and use `merge_states`.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch.distributed as dist

from streampack.arguments import type_in_words
from streampack.deals.report_channel import ReportChannel
from streampack.errors import StateError
from streampack.job.topology import Topology
from streampack.run.fingerprint import changed_fields

VERSION = 7

LaneState = dict[str, Any] | None

#: The state of a lane, or a function that makes it, since few states are needed.
Deferred = LaneState | Callable[[], LaneState]


def batches_given(state: LaneState) -> int:
    """Return the number of batches that a lane had given when its state was taken."""
    return 0 if state is None else int(state["step"]) + int(state["emitted"])


def batches_known(state: LaneState) -> int:
    """Return the number of batches known in a lane when its state was taken, given or not."""
    return batches_given(state) + (state is not None and state["final"] is False)


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
    """

    fingerprint: dict[str, Any]
    topology: Topology
    next_batch: int
    lanes: dict[int, Deferred]
    stepped_over: list[list[int]] = field(default_factory=list)
    others: dict[int, Deferred] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)

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
            held = f"lanes {_named(map(int, state['lanes']))}" if state["lanes"] else "no lane"
            raise StateError(
                f"The state holds {held}; rank {topology.rank} "
                f"of {topology.world_size} also needs {_named(missing)}.",
                "Load the state that this rank saved, or the state of all ranks, which "
                "`merge_states` makes.",
            )
        lanes = {int(lane): state_of_lane for lane, state_of_lane in state["lanes"].items()}
        owned_lanes = {lane: lanes.pop(lane) for lane in owned}
        values = {name: value for name, value in state.items() if name not in _FIELDS}
        return cls(fingerprint, topology, start, owned_lanes, state["stepped_over"], lanes, values)

    def copy(self) -> RunState:
        """Return an independent copy."""
        stepped_over = [list(numbers) for numbers in self.stepped_over]
        return replace(self, lanes=dict(self.lanes), stepped_over=stepped_over)

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
        }
        owned = self.topology.owned_lanes(self.next_batch, self.fingerprint["lanes"])
        lanes = {str(lane): self.lane(lane) for lane in sorted(owned)}
        state["lanes"] = lanes
        return {**state, "checksum": checksum(state)}


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
            if name in ("fingerprint", "lanes", "checksum"):
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
                f"Lanes {_named(twice)} are in state number {number + 1} and in one before it.",
                "Pass one state of every data-parallel rank.",
            )
        lanes |= {int(lane): state["lanes"][lane] for lane in state["lanes"]}
    missing = sorted(set(range(first["fingerprint"]["lanes"])) - set(lanes))
    if missing:
        raise StateError(
            f"Lanes {_named(missing)} are missing from all {len(states)} states.",
            "Pass the states of all ranks.",
        )
    merged = {str(lane): lanes[lane] for lane in sorted(lanes)}
    state = {**first, "lanes": merged}
    return {**state, "checksum": checksum(state)}


_FIELDS = ("version", "fingerprint", "next_batch", "stepped_over", "checksum", "lanes")


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
    missing = set(_FIELDS) - set(state)
    if missing:
        if (inside := _state_inside(state)) is not None:
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


def _state_inside(checkpoint: Any, name: str = "state", depth: int = 3) -> str | None:
    """Return the Python expression of a run's state inside a checkpoint; None without one."""
    if not isinstance(checkpoint, Mapping) or not depth:
        return None
    if isinstance(checkpoint.get(_KEY), str):
        return f"{name} to DistributedState(loader).load_state_dict"
    if set(_FIELDS) <= set(checkpoint):
        return name
    expressions = (
        _state_inside(value, f"{name}[{key!r}]", depth - 1) for key, value in checkpoint.items()
    )
    return next((each for each in expressions if each is not None), None)


def _named(lanes: Iterable[int]) -> str:
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


_KEY = "streampack"


class DistributedState:
    """A ``Stateful`` for DCP's ``save`` and ``load``, called in step on all ranks.

    ``dcp.save({"data": DistributedState(loader)}, checkpoint_id=path)`` on one number of ranks,
    ``dcp.load({"data": DistributedState(loader)}, checkpoint_id=path)`` on another.

    Args:
        loader: the `PackedLoader` of this rank.
        group: process group to gather through; None is the default one. With NCCL, pass a gloo
            group, since states are not on a device.
        batch: ``after=`` or ``before=`` with a batch, as for `PackedLoader.state_dict`.
    """

    def __init__(self, loader: Any, group: dist.ProcessGroup | None = None, **batch: Any) -> None:
        self._loader = loader
        self._group = group
        self._batch = batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks, the same on each. This is a collective."""
        return self.of_all(self._loader.state_dict(**self._batch))

    def of_all(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the merged state of all ranks, given another state of this rank's loader."""
        topology: Topology = self._loader.dataset.topology
        numbered = (topology.rank, state)
        if dist.is_available() and dist.is_initialized():
            gathered: list[Any] = [None] * dist.get_world_size(self._group)
            dist.all_gather_object(gathered, numbered, group=self._group)
        else:
            gathered = [numbered]
        by_rank = dict(reversed(gathered))
        return {_KEY: json.dumps(merge_states([by_rank[rank] for rank in sorted(by_rank)]))}

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Resume from a state saved by any number of ranks; `allow` as for `PackedLoader`.

        Raises:
            StateError: the state is damaged, or belongs to another run.
        """
        text = state.get(_KEY)
        try:
            saved = json.loads(text if isinstance(text, str) else "")
        except (ValueError, RecursionError) as error:
            remedy = "Load a checkpoint that was saved with DistributedState under the same name."
            if (inside := _state_inside(state)) is not None:
                other = " to loader.load_state_dict" if "load_state_dict" not in inside else ""
                remedy = f"Pass {inside}{other}."
            raise StateError(f"The entry must be JSON, got {text!r:.80}.", remedy) from error
        self._loader.load_state_dict(saved, allow=allow)
