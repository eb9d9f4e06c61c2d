"""The state of a run: what the loop has consumed, as coordinates that any process can go on from.

``{"version": 7, "fingerprint": {...}, "next_batch": g, "stepped_over": [[first, end], ...],
"lanes": {"0": {...}, ...}}``: plain JSON. Where weights of a mixture were changed while it ran,
also ``"weights": [[batch, {name: weight, ...}], ...]``. A lane that has given nothing yet has the
state None.
The state of a rank holds the lanes whose latest turn was its own: where the ranks divide the lanes,
all that it runs. `merge_states` makes one of the states of all ranks, and any number of ranks goes
on from that.

DistributedState: a run's state in a torch.distributed.checkpoint (DCP), for any ranks.

Steps of `state_dict`:
  1. The data-parallel ranks show each other their states (`all_gather_object`).
  2. Every rank merges them; of ranks that share a data-parallel rank, one counts.
  3. DCP gets one entry, the same on every rank, which it stores once.
So the keys do not depend on the number of ranks or lanes, and a load asks for what is there.

Cost: the states of all lanes, some kilobytes each, pass through every rank: 4 MB for 1,000 lanes.
With tens of thousands, write one file per rank and use `merge_states`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from streampack.arguments import type_in_words
from streampack.deals.sharing import Sharing
from streampack.errors import StateError
from streampack.job.topology import Topology
from streampack.run.fingerprint import changed_fields

if TYPE_CHECKING:
    from streampack.sources.credits import WeightChange

VERSION = 7

LaneState = dict[str, Any] | None

#: The state of a lane, or what makes it, since few are asked for.
Deferred = LaneState | Callable[[], LaneState]


def batches_given(state: LaneState) -> int:
    """Batches that a lane had given when its state was taken."""
    return 0 if state is None else int(state["step"]) + int(state["emitted"])


def batches_known(state: LaneState) -> int:
    """Batches that a lane was known to have when its state was taken, given or not."""
    return batches_given(state) + (state is not None and state["final"] is False)


def batches_due(lane: int, next_batch: int, lanes: int) -> int:
    """This lane's turns before batch `next_batch`; it may have given fewer batches."""
    return -((lane - next_batch) // lanes) if next_batch > lane else 0


@dataclass(slots=True)
class RunState:
    """What one rank has consumed.

    Args:
        fingerprint: of the run; see `PackedDataset.fingerprint`.
        topology: whose lanes these are.
        next_batch: global number of the first batch not consumed by all ranks in step.
        lanes: state of each lane this rank owns.
        stepped_over: [first, end) numbers of batches that the loop stepped over.
        others: the states of other lanes at the place that this one was loaded from.
        weight_changes: of a mixture, made and to come, in the order of their batches.
    """

    fingerprint: dict[str, Any]
    topology: Topology
    next_batch: int
    lanes: dict[int, Deferred]
    stepped_over: list[list[int]] = field(default_factory=list)
    others: dict[int, Deferred] = field(default_factory=dict)
    weight_changes: tuple[WeightChange, ...] = ()

    @classmethod
    def of_rank(
        cls, state: Mapping[str, Any], fingerprint: dict[str, Any], topology: Topology
    ) -> RunState:
        """The lanes of one rank, of a checked state.

        Raises:
            StateError: it does not hold all of them.
        """
        start = state["next_batch"]
        owned = topology.lanes(start, fingerprint["lanes"])
        missing = [lane for lane in owned if str(lane) not in state["lanes"]]
        if missing:
            held = f"lanes {_named(map(int, state['lanes']))}" if state["lanes"] else "no lane"
            raise StateError(
                f"The state holds {held}; rank {topology.rank} "
                f"of {topology.world_size} also needs {_named(missing)}.",
                "Load the state that this rank saved, or that of all ranks together, which "
                "`merge_states` makes.",
            )
        lanes = {int(lane): own for lane, own in state["lanes"].items()}
        own = {lane: lanes.pop(lane) for lane in owned}
        changes: tuple[WeightChange, ...] = ()
        if state.get("weights"):
            from streampack.sources.credits import WeightChange

            changes = tuple(WeightChange(*change) for change in state["weights"])
        return cls(fingerprint, topology, start, own, state["stepped_over"], lanes, changes)

    def copy(self) -> RunState:
        """An independent copy."""
        stepped_over = [list(numbers) for numbers in self.stepped_over]
        return replace(self, lanes=dict(self.lanes), stepped_over=stepped_over)

    def commit(self, lane: int, step: int, state: Deferred) -> None:
        """Record that the loop has consumed batch number `step` of `lane`.

        Args:
            lane, step: which batch.
            state: of the lane from now on; None if it stays what it was.
        """
        self.next_batch = self.topology.step_after(step * self.fingerprint["lanes"] + lane)
        if state is not None:
            self.lanes[lane] = state

    def step_over(self, first: int) -> None:
        """Record that the batches from number `first` on were consumed without being used."""
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
        """The states of the lanes that this rank runs, in the order of the rotation."""
        lanes = self.topology.lanes(self.next_batch, self.fingerprint["lanes"])
        return {lane: self.lane(lane) for lane in lanes}

    def sharing(self, *, connected: bool, name: str | None = None, kept: bool = False) -> Sharing:
        """How this rank's lanes learn what others report for deals.

        Args:
            connected: whether the ranks tell each other.
            name, kept: of the file of several processes; see `Sharing`.
        """
        if connected:
            return Sharing(name, kept=kept)
        total = self.fingerprint["lanes"]
        unknown = set(range(total)).difference(self.lanes)
        found = {lane: self.others[lane] for lane in unknown if lane in self.others}
        known = {lane: own() if callable(own) else own for lane, own in found.items()}
        return Sharing(name, known, sorted(unknown.difference(known)), kept)

    def lane(self, lane: int) -> LaneState:
        """The state of one lane."""
        state = self.lanes[lane]
        if callable(state):
            state = self.lanes[lane] = state()
        return state

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; shares nothing with what later batches change."""
        state = {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "next_batch": self.next_batch,
            "stepped_over": [list(numbers) for numbers in self.stepped_over],
        }
        if self.weight_changes:
            state["weights"] = [[batch, dict(by)] for batch, by in self.weight_changes]
        owned = self.topology.owned_lanes(self.next_batch, self.fingerprint["lanes"])
        lanes = {str(lane): self.lane(lane) for lane in sorted(owned)}
        state["lanes"] = lanes
        return {**state, "checksum": checksum(state)}


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of the states that the ranks of a run saved after the same step.

    Args:
        states: of all ranks, in any order.

    Returns:
        A state for any number of data-parallel ranks.

    Raises:
        StateError: they are of different runs or steps, or do not hold every lane exactly once.
    """
    if isinstance(states, Mapping):
        raise StateError(
            "One state was passed.",
            "Pass a list of them, merge_states([state]); or load the state of one rank as it is.",
        )
    if not states:
        raise StateError("There are no states to merge.", "Pass the states that the ranks saved.")
    lanes: dict[int, LaneState] = {}
    first = states[0]
    seen: set[str] = set()
    for number, state in enumerate(states):
        check_state(state)
        if state["checksum"] in seen:  # of a rank that runs the same lanes
            continue
        seen.add(state["checksum"])
        if state["fingerprint"] != first["fingerprint"]:
            changed_fields(first["fingerprint"], state["fingerprint"])
        for name in ("next_batch", "stepped_over", "weights"):
            here, there = first.get(name), state.get(name)
            if here != there:
                raise StateError(
                    f"`{name}` is {here} in the first state and {there} in number {number + 1}.",
                    "Merge what all ranks saved in one checkpoint.",
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
            f"Lanes {_named(missing)} are in none of the {len(states)} states.",
            "Pass the states of all ranks.",
        )
    merged = {str(lane): lanes[lane] for lane in sorted(lanes)}
    state = {**first, "lanes": merged}
    return {**state, "checksum": checksum(state)}


_FIELDS = ("version", "fingerprint", "next_batch", "stepped_over", "checksum", "lanes")


def check_state(state: Mapping[str, Any]) -> None:
    """Raise `StateError` unless this version saved the state, and nothing changed it since."""
    if not isinstance(state, Mapping):
        raise StateError(
            f"The state is {type_in_words(state)}.", "Pass what `state_dict()` returned."
        )
    version = state.get("version")
    if isinstance(version, int) and version != VERSION:
        raise StateError(
            f"The state has version {version}, this streampack reads version {VERSION}.",
            "Go on with the version of streampack that saved the state, or start a new run.",
        )
    missing = set(_FIELDS) - set(state)
    if missing:
        if (inside := _state_inside(state)) is not None:
            raise StateError("The mapping holds the state, and is none itself.", f"Pass {inside}.")
        raise StateError(
            f"The state lacks {', '.join(sorted(missing))}.", "Pass what `state_dict()` returned."
        )
    if checksum(state) != state["checksum"]:
        raise StateError(
            "The state does not add up to its checksum.",
            "Pass what `state_dict()` returned, unchanged.",
        )


def _state_inside(checkpoint: Any, name: str = "state", depth: int = 3) -> str | None:
    """Where a checkpoint holds a state of a run, as Python; None if it is not found."""
    if not isinstance(checkpoint, Mapping) or not depth:
        return None
    if isinstance(checkpoint.get(_KEY), str):
        return f"{name} to DistributedState(loader).load_state_dict"
    if set(_FIELDS) <= set(checkpoint):
        return name
    found = (
        _state_inside(value, f"{name}[{key!r}]", depth - 1) for key, value in checkpoint.items()
    )
    return next((each for each in found if each is not None), None)


def _named(lanes: Iterable[int]) -> str:
    """Numbers in words, not too many."""
    numbers = sorted(lanes)
    shown = ", ".join(map(str, numbers[:12]))
    return shown if len(numbers) <= 12 else f"{shown}, ... ({len(numbers)} in all)"


def checksum(state: Mapping[str, Any]) -> str:
    """64 bits, in hexadecimal, over all of a JSON-able state but its checksum."""
    fields = {name: state[name] for name in state if name != "checksum"}
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        return f"none, for {error}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_KEY = "streampack"


class DistributedState:
    """What DCP's ``save`` and ``load`` call (a ``Stateful``), in step on all ranks.

    ``dcp.save({"data": DistributedState(loader)}, checkpoint_id=path)`` on one number of ranks,
    ``dcp.load({"data": DistributedState(loader)}, checkpoint_id=path)`` on another.

    Args:
        loader: the `PackedLoader` of this rank.
        group: process group to gather through; None is the default one. With NCCL, pass a gloo
            group, for states are not on a device.
        batch: ``after=`` or ``before=`` a batch, as for `PackedLoader.state_dict`.
    """

    def __init__(self, loader: Any, group: dist.ProcessGroup | None = None, **batch: Any) -> None:
        self._loader = loader
        self._group = group
        self._batch = batch

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, the same on each of them. A collective."""
        return self.of_all(self._loader.state_dict(**self._batch))

    def of_all(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The same, of another state of this rank's loader."""
        topology: Topology = self._loader.dataset.topology
        own = (topology.rank, state)
        if dist.is_available() and dist.is_initialized():
            gathered: list[Any] = [None] * dist.get_world_size(self._group)
            dist.all_gather_object(gathered, own, group=self._group)
        else:
            gathered = [own]
        by_rank = dict(reversed(gathered))
        return {_KEY: json.dumps(merge_states([by_rank[rank] for rank in sorted(by_rank)]))}

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Go on after what any number of ranks saved; `allow` as for `PackedLoader`.

        Raises:
            StateError: it is damaged, or the state is of another run.
        """
        text = state.get(_KEY)
        try:
            saved = json.loads(text if isinstance(text, str) else "")
        except (ValueError, RecursionError) as error:
            remedy = "Load a checkpoint that was saved with DistributedState under the same name."
            if (inside := _state_inside(state)) is not None:
                other = " to loader.load_state_dict" if "load_state_dict" not in inside else ""
                remedy = f"Pass {inside}{other}."
            raise StateError(f"The checkpoint's entry is {text!r:.80}.", remedy) from error
        self._loader.load_state_dict(saved, allow=allow)
